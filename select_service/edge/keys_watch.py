"""EDGE: the file of keys is read again when it changes, and on SIGHUP.

A file that is wrong changes nothing: the keys that counted go on counting, and the log and a metric
say so until the file is good again.
"""

import asyncio
import logging
from pathlib import Path

from select_service.access.api_key import ApiKey
from select_service.access.guard import Guard
from select_service.access.keys_file import read_keys
from select_service.edge.file_changes import file_changes

LOOK_S = 1.0
"""Between two looks at the file."""

log = logging.getLogger("select_service.keys")


class KeysWatch:
    """Belongs to one event loop.  Looking and reading happen on a thread."""

    def __init__(self, path: Path, guard: Guard) -> None:
        self._path, self._guard = path, guard
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """The task ends only by `stop`."""
        self._task = asyncio.create_task(self._work())
        return self._task

    def look_now(self) -> None:
        """Read the file whether it has changed or not."""
        self._asked.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        async for _ in file_changes([self._path], LOOK_S, self._asked):
            await self._read()

    async def _read(self) -> None:
        try:
            keys = await asyncio.to_thread(read_keys, self._path)
        except ValueError as error:
            self._guard.keep(str(error))
            fields = {"path": str(self._path), "error": str(error), "kept": len(self._guard)}
            log.error(
                "the file of keys is wrong; the keys before go on counting",
                extra={"fields": fields},
            )
        else:
            self._take(keys)

    def _take(self, keys: tuple[ApiKey, ...]) -> None:
        if self._guard.replace(keys):
            fields = {"path": str(self._path), "keys": [key.name for key in keys]}
            log.info("keys were read", extra={"fields": fields})
