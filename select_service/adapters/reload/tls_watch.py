"""Reloading of certificates, keys and CAs after a change and on SIGHUP.

Invalid files change nothing: the previous certificates stay in use, and the log and a metric report
the error until the files are valid again.
"""

import logging

from select_service.adapters.reload.file_watch import FileWatch
from select_service.net.tls.current_tls import CurrentTls

log = logging.getLogger("select_service.tls")


class TlsFilesWatch(FileWatch):
    """Watcher of the TLS files of one side."""

    def __init__(self, kept: CurrentTls, side: str = "client") -> None:
        """side: `server` or `client`"""
        super().__init__(f"tls_{side}", kept.paths)
        self._kept = kept

    async def _reload_files(self) -> None:
        fields: dict[str, object] = {"paths": [str(path) for path in self._kept.paths]}
        try:
            loaded = await self.files.read_on_thread(self._kept.read)
        except ValueError as error:
            self._kept.record_invalid(str(error))
            fields["error"] = str(error)
            text = "TLS files are invalid; keeping the previous ones"
            log.error(text, extra={"fields": fields})
        else:
            if self._kept.apply_loaded(loaded):
                log.info("TLS files reloaded", extra={"fields": fields})
