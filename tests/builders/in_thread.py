"""The whole service on a thread of this process: settings, sockets and life of the command.

For tests of many services with separate settings, where only the answers matter: a separate process
needs a second of CPU to begin.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from unittest import mock

from select_service.base.log_format import shows_debug
from select_service.config.settings_loader import load_config, parse_arguments
from select_service.server import lifecycle
from select_service.server.listening_socket import bind_listener
from select_service.server.startup_settings import validate_settings
from select_service.server.thread_pool import start_threads
from tests.builders.polling import PATIENCE_S, eventually
from tests.builders.running import Reached

PLACE = ("--host", "127.0.0.1", "--port", "0", "--allowed-hosts", "*")
LEVELLED = ("select_service", "indexer", "uvicorn")
"""Loggers with a level that a client can change."""


class InThread(Reached):
    """Service from the first answer to the end; changes to the process are undone afterwards."""

    def __init__(
        self, *flags: str, folder: Path = Path(), environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the thread.

        folder: base of relative paths in the settings
        """
        given = (
            {"DYN_USE_KV_EVENTS": "false", "SELECT_SERVICE_NO_ASSUMED_INDEX": "true"}
            if environment is None
            else environment
        )
        with contextlib.chdir(folder):
            config = load_config(parse_arguments([*PLACE, *flags]), given)
            wanted = validate_settings(config, "1.2.3")
        self._kept = contextlib.ExitStack()
        self._kept.callback(sys.setswitchinterval, sys.getswitchinterval())
        self._kept.callback(shows_debug.__setitem__, 0, shows_debug[0])
        for name in LEVELLED:
            logger = logging.getLogger(name)
            self._kept.callback(logger.setLevel, logger.level)
        self._servers: list[Any] = []
        self._kept.enter_context(mock.patch.object(lifecycle, "GcFreezer"))
        self._kept.enter_context(mock.patch.object(lifecycle, "make_http_server", self._server_of))
        listener = self._kept.enter_context(bind_listener("127.0.0.1", 0))
        super().__init__(listener.getsockname()[1])
        parts = lifecycle.open_sockets(wanted, listener)
        self._thread = threading.Thread(
            target=lifecycle.run_service, args=(parts, listener, start_threads())
        )
        self._thread.start()

    def __enter__(self) -> Self:
        eventually(lambda: self._servers and self._servers[0].started)
        return self

    def __exit__(self, *_: object) -> None:
        self._servers[0].should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._kept.close()

    def _server_of(self, *given: Any, make: Any = lifecycle.make_http_server) -> Any:
        """Keep the server, so that the end needs no signal."""
        self._servers.append(make(*given))
        return self._servers[0]
