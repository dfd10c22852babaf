"""EDGE: certificates, keys and CAs are read again when they change, and on SIGHUP.

Files that are wrong change nothing: what was read last goes on counting, and the log and a metric
say so until they are good again.
"""

import logging

from select_service.edge.file_changes import FileWatch
from select_service.tls.kept import Kept

log = logging.getLogger("select_service.tls")


class TlsWatch(FileWatch):
    def __init__(self, kept: Kept, side: str = "client") -> None:
        """side: `server` or `client`"""
        super().__init__(f"tls_{side}", kept.paths)
        self._kept = kept

    async def _read(self) -> None:
        fields: dict[str, object] = {"paths": [str(path) for path in self._kept.paths]}
        try:
            loaded = await self.files.read(self._kept.read)
        except ValueError as error:
            self._kept.keep(str(error))
            fields["error"] = str(error)
            text = "files of TLS are wrong; those before go on counting"
            log.error(text, extra={"fields": fields})
        else:
            if self._kept.take(loaded):
                log.info("files of TLS were read", extra={"fields": fields})
