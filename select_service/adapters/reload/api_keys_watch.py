"""Reloading of the API key file after a change and on SIGHUP.

An invalid file changes nothing: the previous keys stay valid, and the log and a metric report the
error until the file is valid again.
"""

import logging
from pathlib import Path

from select_service.adapters.reload.file_watch import FileWatch
from select_service.auth.api_key import ApiKey
from select_service.auth.guard import Guard
from select_service.auth.keys_file import read_api_keys

log = logging.getLogger("select_service.keys")


class ApiKeysWatch(FileWatch):
    """Watcher of the API key file."""

    def __init__(self, path: Path, guard: Guard) -> None:
        super().__init__("api_keys_file", [path])
        self._path, self._guard = path, guard

    async def _reload_files(self) -> None:
        try:
            keys = await self.files.read_on_thread(lambda: read_api_keys(self._path))
        except ValueError as error:
            self._guard.note_fault(str(error))
            fields = {"path": str(self._path), "error": str(error), "kept": len(self._guard)}
            text = "API key file is invalid; keeping the previous keys"
            log.error(text, extra={"fields": fields})
        else:
            self._apply_keys(keys)

    def _apply_keys(self, keys: tuple[ApiKey, ...]) -> None:
        if self._guard.replace_keys(keys):
            fields = {"path": str(self._path), "keys": [key.name for key in keys]}
            log.info("API keys reloaded", extra={"fields": fields})
