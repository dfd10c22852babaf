"""Command `select-service`: validates the settings, prepares machine code, runs the service."""

import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, NamedTuple

from select_service.base import log_format as logs
from select_service.base.command_line import UsageError, exit_quietly_on_closed_output, print_error
from select_service.base.version import package_version
from select_service.cli.compile_kernels import compile_before_start, compile_command
from select_service.config.open_interfaces import check_open_interfaces, replica_host
from select_service.config.settings_loader import UnusableSetting, load_config, parse_arguments
from select_service.server.early_signals import exit_immediately_on_signal, ignore_hangups
from select_service.server.gc_tuning import gc_disabled
from select_service.server.listening_socket import (
    PORT_ADVICE,
    SHARED_PORT_ADVICE,
    PortInUse,
    bind_listener,
)
from select_service.server.output_files import claim_output_files
from select_service.server.startup_settings import StartupSettings, validate_settings
from select_service.server.thread_pool import start_threads

USAGE_ERROR = 2


class ValidatedStartup(NamedTuple):
    """Validated settings, the bound listener and the file locks."""

    wanted: StartupSettings
    listener: socket.socket
    locks: list[IO[bytes]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 after a signal, 1 if a component failed, 2 if the start is
    impossible.

    After the service has run, this function ends the process itself.
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        with exit_quietly_on_closed_output():
            status = _run_subcommand(words)
        if status is not None:
            return status
        with exit_immediately_on_signal(0):
            ignore_hangups()
            judged = _validate_startup(words, os.environ)
            if judged is None:
                with exit_quietly_on_closed_output():
                    print(f"select-service {package_version()}")
                return 0
            compile_before_start()
            with gc_disabled():
                # Only now: importing the kernels takes half a second, which must not delay an
                # error.
                from select_service.server.lifecycle import open_sockets, run_service

                threads = start_threads()
                parts = open_sockets(judged.wanted, judged.listener)
    except UsageError as error:
        print_error(str(error))
        return USAGE_ERROR
    status = run_service(parts, judged.listener, threads)
    # Everything is closed.  Tearing down the interpreter and the compiler would only cost time.
    logging.shutdown()
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(status)


def _run_subcommand(words: Sequence[str]) -> int | None:
    """Run the subcommand that the first word names; return its status, or None.

    Raises UsageError.
    """
    match words[:1]:
        case ["compile"]:
            with exit_immediately_on_signal(1):
                return compile_command(words[1:])
        case ["cache"]:
            from select_service.cli.cache import cache_command

            return cache_command(words[1:])
        case ["explain"]:
            from select_service.cli.explain import explain_command

            return explain_command(words[1:])
        case ["inspect"]:
            from select_service.cli.inspect import inspect_command

            return inspect_command(words[1:])
        case ["doctor"]:
            from select_service.cli.doctor import doctor_command

            return doctor_command(words[1:])
        case ["replay"]:
            compile_before_start()
            from select_service.sim.replay.policy_replay_command import replay_command

            return replay_command(words[1:])
        case ["keys"]:
            from select_service.cli.keys_command import keys_command

            return keys_command(words[1:])
    return None


def _validate_startup(
    argv: Sequence[str], environment: Mapping[str, str]
) -> ValidatedStartup | None:
    """Validate the settings; None means that only the version was requested.  Raises UsageError."""
    arguments = parse_arguments(argv)
    if arguments.version:
        return None
    config = load_config(arguments, environment)
    check_open_interfaces(config)
    wanted = validate_settings(config, package_version())
    logs.configure_logging(config["log_level"], config["log_format"])
    # Before the port: with --reuse-port two processes can share it, but never a file.
    locks = claim_output_files(config)
    port = config["replica_sync_port"]
    if port is not None:
        _check_port(replica_host(config), port)
    try:
        # Bound before the kernels are compiled: a port in use is reported at once.
        listener = bind_listener(config["host"], config["port"], config["reuse_port"])
    except PortInUse as error:
        more = SHARED_PORT_ADVICE if config["reuse_port"] else PORT_ADVICE
        raise PortInUse(f"{error}{more}") from None
    return ValidatedStartup(wanted, listener, locks)


def _check_port(host: str, port: int) -> None:
    """Report an unusable port now, instead of after the compilation of kernels."""
    try:
        bind_listener(host, port).close()
    except UnusableSetting as error:
        raise UnusableSetting(f"--replica-sync-port: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
