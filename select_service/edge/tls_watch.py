"""EDGE: certificates, keys and CAs are read again when they change, and on SIGHUP.

Files that are wrong change nothing: what was read last goes on counting, and the log and a metric
say so until they are good again.
"""

import asyncio
import logging

from select_service.edge.file_changes import file_changes
from select_service.tls.kept import Kept

LOOK_S = 1.0
"""Between two looks at the files."""

log = logging.getLogger("select_service.tls")


class TlsWatch:
    """Belongs to one event loop.  Looking and reading happen on a thread."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """The task ends only by `stop`."""
        self._task = asyncio.create_task(self._work())
        return self._task

    def look_now(self) -> None:
        """Read the files whether they have changed or not."""
        self._asked.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        async for _ in file_changes(self._kept.paths, LOOK_S, self._asked):
            await self._read()

    async def _read(self) -> None:
        fields: dict[str, object] = {"paths": [str(path) for path in self._kept.paths]}
        try:
            loaded = await asyncio.to_thread(self._kept.read)
        except ValueError as error:
            self._kept.keep(str(error))
            fields["error"] = str(error)
            text = "files of TLS are wrong; those before go on counting"
            log.error(text, extra={"fields": fields})
        else:
            if self._kept.take(loaded):
                log.info("files of TLS were read", extra={"fields": fields})
