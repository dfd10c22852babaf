"""The command: judges every setting, sees to the machine code, then runs the service."""

import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, NamedTuple

from select_service import log as logs
from select_service.command_line import UsageError, leaving_with_reader
from select_service.settings.config import (
    CACHE,
    COMPILE,
    DOCTOR,
    EXPLAIN,
    INSPECT,
    KEYS,
    REPLAY,
    Unusable,
    arguments_of,
    load,
)
from select_service.settings.reach import check_reach, replica_host
from select_service.starting.collector import no_collections
from select_service.starting.compile_ahead import compile_before_start, compile_command
from select_service.starting.listening import PORTS, PORTS_SHARED, PortInUse, bind
from select_service.starting.signals import ignore_hangups, leaving_at_once
from select_service.starting.threads import begun_threads
from select_service.starting.wanted import Wanted, wanted_of
from select_service.starting.written_files import claims
from select_service.version import package_version

USAGE_ERROR = 2


class Judged(NamedTuple):
    """Settings that were found good, and what is taken for the service: its address, its files."""

    wanted: Wanted
    listener: socket.socket
    locks: list[IO[bytes]]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a signal, 1 when a part of the service failed, 2 when it cannot start.

    Ends the process itself once the service has run.
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        with leaving_with_reader():
            if words[:1] == [COMPILE]:
                with leaving_at_once(1):
                    return compile_command(words[1:])
            if words[:1] == [CACHE]:
                from select_service.starting.cache_command import cache_command

                return cache_command(words[1:])
            if words[:1] == [EXPLAIN]:
                from select_service.explaining import (
                    explain_command,  # no start needs an HTTP client
                )

                return explain_command(words[1:])
            if words[:1] == [INSPECT]:
                from select_service.edge.discovery.inspecting import inspect_command  # nor this

                return inspect_command(words[1:])
            if words[:1] == [DOCTOR]:
                from select_service.doctor import doctor_command  # nor this

                return doctor_command(words[1:])
            if words[:1] == [REPLAY]:
                compile_before_start(has_loops=False)
                from select_service.replaying.command import replay_command  # nor a simulator

                return replay_command(words[1:])
            if words[:1] == [KEYS]:
                from select_service.access.command import keys_command  # no start makes keys

                return keys_command(words[1:])
        with leaving_at_once(0):
            ignore_hangups()
            judged = _judged(words, os.environ)
            if judged is None:
                with leaving_with_reader():
                    print(f"select-service {package_version()}")
                return 0
            compile_before_start(has_loops=judged.wanted.config["input_loops"] > 0)
            with no_collections():
                # Only now: importing the kernels takes half a second, for which no verdict waits.
                from select_service.app import opened, run

                threads = begun_threads()
                parts = opened(judged.wanted, judged.listener)
    except UsageError as error:
        print(f"select-service: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    status = run(parts, judged.listener, threads)
    # Everything is closed. Taking the interpreter and the compiler apart would only cost time.
    logging.shutdown()
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(status)


def _judged(argv: Sequence[str], environment: Mapping[str, str]) -> Judged | None:
    """None when only the version is asked for.  Raises UsageError."""
    arguments = arguments_of(argv)
    if arguments.version:
        return None
    config = load(arguments, environment)
    check_reach(config)
    wanted = wanted_of(config, package_version())
    logs.configure(config["log_level"], config["log_format"])
    locks = claims(config)
    port = config["replica_sync_port"]
    if port is not None:
        _check_port(replica_host(config), port)
    try:
        listener = bind(config["host"], config["port"], config["reuse_port"])
    except PortInUse as error:
        more = PORTS_SHARED if config["reuse_port"] else PORTS
        raise PortInUse(f"{error}{more}") from None
    return Judged(wanted, listener, locks)


def _check_port(host: str, port: int) -> None:
    """Tell at once what would otherwise be found after the kernels are compiled."""
    try:
        bind(host, port).close()
    except Unusable as error:
        raise Unusable(f"--replica-sync-port: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
