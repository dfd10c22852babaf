"""EDGE: the file of keys is read again when it changes, and on SIGHUP.

A file that is wrong changes nothing: the keys that counted go on counting, and the log and a metric
say so until the file is good again.
"""

import logging
from pathlib import Path

from select_service.access.api_key import ApiKey
from select_service.access.guard import Guard
from select_service.access.keys_file import read_keys
from select_service.edge.file_changes import FileWatch

log = logging.getLogger("select_service.keys")


class KeysWatch(FileWatch):
    def __init__(self, path: Path, guard: Guard) -> None:
        super().__init__("api_keys_file", [path])
        self._path, self._guard = path, guard

    async def _read(self) -> None:
        try:
            keys = await self.files.read(lambda: read_keys(self._path))
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
