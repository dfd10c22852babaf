"""State file: the catalog, busy thresholds and load-shedding settings across restarts.

The file is rewritten shortly after a change and at shutdown, and restored before the first request
is answered.  Without a file, as for a new replica, the state is requested from a peer.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from select_service.adapters.http_get import HttpClient
from select_service.adapters.persistence.background_write import BackgroundWrite
from select_service.adapters.persistence.persisted_file import PersistedFile
from select_service.adapters.persistence.session_file import SessionFile
from select_service.base.cooperative import collect_cooperatively
from select_service.base.decode_errors import DECODE_ERRORS
from select_service.core.periodic_task import PeriodicTask
from select_service.files.atomic_file import PRIVATE_MODE
from select_service.files.persisted_formats import STATE
from select_service.net.http_client.http_error import HttpError
from select_service.schemas.persisted_state import PersistedState

INTERVAL_S = 0.5
"""Interval of checks for changes, in seconds."""
PEER_S = 5.0
"""Time limit of a request to a peer, in seconds."""

log = logging.getLogger("select_service.state")


class StateFile:
    """Store of the service state.  Belongs to one event loop."""

    def __init__(
        self,
        path: Path,
        state: Callable[[], PersistedState],
        changes: Callable[[], int],
        restore: Callable[[PersistedState], Iterator[str | None]],
        mode: int = PRIVATE_MODE,
        sessions: SessionFile | None = None,
    ) -> None:
        """changes: function that returns a change number, different after every change
        restore: generator function that applies a state in steps and yields descriptions of losses
        mode: permission bits of the file
        sessions: file of the sessions, which lives as the state file does; None without one
        """
        self.sessions = sessions
        self._file = PersistedFile(path, STATE, mode, log)
        self.failures = 0
        self.failures_in_a_row = 0
        self._state = state
        self._changes = changes
        self._restore = restore
        self._written_change: int | None = None
        """Change number of the state in the file."""
        self._writing = BackgroundWrite(path, log, "state file not written, file system hangs")

    async def restore_state(self, peers: Sequence[str], http: HttpClient) -> None:
        """Restore the state from the file, else from the first peer that has workers."""
        if self.sessions is not None:
            await self.sessions.restore()
        origin, state = str(self._file.path), await self._read_file()
        if state is None:
            # All peers at once: start-up waits for one time limit, not for their sum.
            told = await asyncio.gather(*(_fetch_peer_state(peer, http) for peer in peers))
            by_peer = ((peer, each) for peer, each in zip(peers, told, strict=True) if each)
            origin, state = next(by_peer, ("", None))
        if state is None:
            return
        lost = await collect_cooperatively(self._restore(state))
        fields = {"from": origin, "workers": len(state.workers) - len(lost), "lost": lost[:5]}
        log.info("workers and admission settings restored", extra={"fields": fields})

    def periodic_tasks(self) -> list[PeriodicTask]:
        """Return the periodic tasks of the state file."""
        own = [PeriodicTask("state", INTERVAL_S, self._write_if_changed)]
        return own if self.sessions is None else own + self.sessions.periodic_tasks()

    async def stop(self) -> None:
        """Write unsaved changes."""
        if self.sessions is not None:
            await self.sessions.stop()
        if await self._writing.has_ended():
            self._write_if_changed(0.0)
            await self._writing.has_ended()

    def _write_if_changed(self, now: float) -> bool:
        changes = self._changes()
        # One write at a time; a change during a write differs from `_written_change` and is written
        # next.
        if changes != self._written_change and not self._writing.is_running:
            self._writing.start(self._write_file(self._state(), changes))
        return False

    async def _write_file(self, state: PersistedState, changes: int) -> None:
        try:
            await asyncio.to_thread(_write_state, self._file, state)
        except OSError as error:
            self.failures += 1
            self.failures_in_a_row += 1
            fields = {"path": str(self._file.path), "error": str(error)}
            log.warning("state file write failed", extra={"fields": fields})
        else:
            self._written_change, self.failures_in_a_row = changes, 0

    async def _read_file(self) -> PersistedState | None:
        try:
            return await asyncio.to_thread(_read_state, self._file)
        except (OSError, ValueError, RecursionError) as error:
            await asyncio.to_thread(self._file.move_unusable_aside, error, "state file unusable")
            return None


async def _fetch_peer_state(peer: str, http: HttpClient) -> PersistedState | None:
    """Return the state of a peer; None if unavailable or without workers."""
    url = peer.rstrip("/") + "/state"
    try:
        content = await http.get_body(
            url,
            accept="application/json",
            bytes_max=STATE.bytes_max,
            timeout_s=PEER_S,
            purpose="recovery",
            with_key=True,
        )
        state = await asyncio.to_thread(msgspec.json.decode, content, type=PersistedState)
    except (HttpError, *DECODE_ERRORS) as error:
        fields = {"peer": peer, "error": str(error)[:200]}
        log.info("state of peer unavailable", extra={"fields": fields})
        return None
    return state if state.workers else None


def _read_state(file: PersistedFile) -> PersistedState | None:
    """Return the state in the file, or None if there is none.

    Raises OSError, ValueError, RecursionError.
    """
    content = file.read()
    return None if content is None else msgspec.json.decode(content, type=PersistedState)


def _write_state(file: PersistedFile, state: PersistedState) -> None:
    """Write the state.  Raises OSError."""
    file.write(msgspec.json.encode(state))
