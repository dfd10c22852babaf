"""The command: reads the configuration, then runs the service."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from types import FrameType
from typing import NoReturn

from select_service import log as logs
from select_service.settings.config import ConfigError, load, parser

USAGE_ERROR = 2
SLOW_START_S = 3.0


def package_version() -> str:
    """Version of the installed package, or of the source tree when it is run from there."""
    try:
        return version("select-service")
    except PackageNotFoundError:
        return "0.1.0+source"


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """A signal before there is anything to end gracefully; the server has its own handlers."""
    raise SystemExit(0)


@contextmanager
def explained_when_slow(seconds: float) -> Iterator[None]:
    """Log why nothing happens when it takes longer: the first start has kernels to compile."""
    notice = threading.Timer(
        seconds,
        logging.getLogger("select_service").info,
        ("compiling the kernels takes a minute or two; later starts find them in a cache",),
    )
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a signal, 1 when the service cannot run, 2 for a wrong setting.

    Ends the process itself once the service has run.
    """
    try:
        arguments = parser().parse_args(argv)
        if arguments.version:
            print(f"select-service {package_version()}")
            return 0
        config = load(arguments, os.environ)
    except ConfigError as error:
        print(f"select-service: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    logs.configure(config["log_level"], config["log_format"])
    # Only now: the compiled kernels take half a second, which --help need not wait for.
    with explained_when_slow(SLOW_START_S):
        from select_service.app import serve

    status = serve(config, package_version())
    # Everything is closed. Taking the interpreter and the compiler apart would only cost time.
    logging.shutdown()
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
