"""The whole service on a thread of this process: settings, sockets and life of the command.

For tests of many services, each with settings of its own, whose subject is what is answered: a
process of its own needs a second of CPU to begin.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

from select_service import app
from select_service.log import shows_debug
from select_service.settings.config import arguments_of, load
from select_service.starting.listening import bind
from select_service.starting.threads import begun_threads
from select_service.starting.wanted import wanted_of
from tests.patience import PATIENCE_S, eventually
from tests.process.running import Reached

PLACE = ("--host", "127.0.0.1", "--port", "0", "--allowed-hosts", "*")
LEVELLED = ("select_service", "indexer", "uvicorn")
"""Loggers whose level a client can change."""


class InThread(Reached):
    """From its first answer to its end.  What it changes of the process is as before afterwards."""

    def __init__(
        self, *flags: str, folder: Path = Path(), environment: Mapping[str, str] | None = None
    ) -> None:
        """folder: where relative paths in its settings begin"""
        given = {"DYN_USE_KV_EVENTS": "false"} if environment is None else environment
        with contextlib.chdir(folder):
            config = load(arguments_of([*PLACE, *flags]), given)
            wanted = wanted_of(config, "1.2.3")
        self._kept = contextlib.ExitStack()
        self._kept.callback(sys.setswitchinterval, sys.getswitchinterval())
        self._kept.callback(shows_debug.__setitem__, 0, shows_debug[0])
        for name in LEVELLED:
            logger = logging.getLogger(name)
            self._kept.callback(logger.setLevel, logger.level)
        self._servers: list[Any] = []
        self._kept.enter_context(mock.patch.object(app, "Freezing"))
        self._kept.enter_context(mock.patch.object(app, "server_of", self._server_of))
        listener = self._kept.enter_context(bind("127.0.0.1", 0))
        super().__init__(listener.getsockname()[1])
        parts = app.opened(wanted, listener)
        self._thread = threading.Thread(target=app.run, args=(parts, listener, begun_threads()))
        self._thread.start()

    def __enter__(self) -> Self:
        eventually(lambda: self._servers and self._servers[0].started)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._servers[0].should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._kept.close()

    def _server_of(self, *given: Any, make: Any = app.server_of) -> Any:
        """For the end, which comes by a signal elsewhere."""
        self._servers.append(make(*given))
        return self._servers[0]
