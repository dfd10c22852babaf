"""The catalog, busy thresholds and shedding over the end of the process.

They are written whole into a file a moment after they have changed, and at the end; and come back
from it before the first request is answered.  Where there is no file, as for a replica that is new,
a peer is asked for its own.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from select_service.bodies.state import KeptState
from select_service.core.due_task import DueTask
from select_service.edge.http_client import HttpClient
from select_service.edge.http_error import HttpError
from select_service.edge.keeping.kept_file import KeptFile
from select_service.kept_formats import STATE
from select_service.turns import in_turns
from select_service.unreadable_json import UNREADABLE
from select_service.whole_file import PRIVATE

INTERVAL_S = 0.5
"""Between two looks whether anything has changed."""
LAST_WRITE_S_MAX = 2.0
"""How long the end of the process waits for a file system."""
PEER_S = 5.0
"""How long a peer may take."""

log = logging.getLogger("select_service.state")


class StateFile:
    """Belongs to one event loop."""

    def __init__(
        self,
        path: Path,
        state: Callable[[], KeptState],
        changes: Callable[[], int],
        restore: Callable[[KeptState], Iterator[str | None]],
        mode: int = PRIVATE,
    ) -> None:
        """changes: another number after the state has changed
        restore: makes it so, in steps, and tells what is lost
        mode: of the file
        """
        self._file = KeptFile(path, STATE, mode, log)
        self.failures = 0
        self.failures_in_a_row = 0
        self._state = state
        self._changes = changes
        self._restore = restore
        self._kept: int | None = None
        """The changes that are in the file."""
        self._writing: asyncio.Task[None] | None = None

    async def restored(self, peers: Sequence[str], http: HttpClient) -> None:
        """From the file, else from the first peer that has workers."""
        origin, state = str(self._file.path), await self._read()
        if state is None:
            told = await asyncio.gather(*(_of_peer(peer, http) for peer in peers))
            by_peer = ((peer, each) for peer, each in zip(peers, told, strict=True) if each)
            origin, state = next(by_peer, ("", None))
        if state is None:
            return
        lost = await in_turns(self._restore(state))
        fields = {"from": origin, "workers": len(state.workers) - len(lost), "lost": lost[:5]}
        log.info("workers and admission are as before", extra={"fields": fields})

    def tasks(self) -> list[DueTask]:
        """What is to be done again and again."""
        return [DueTask("state", INTERVAL_S, self._step)]

    async def stop(self) -> None:
        """Write what has not been written yet."""
        if await self._has_written():
            self._step(0.0)
            await self._has_written()

    async def _has_written(self) -> bool:
        """Wait for the write that is under way.  False: the file system does not answer."""
        if self._writing is None:
            return True
        _, late = await asyncio.wait([self._writing], timeout=LAST_WRITE_S_MAX)
        if late:
            fields = {"path": str(self._file.path), "seconds": LAST_WRITE_S_MAX}
            log.error("state file does not answer; not written", extra={"fields": fields})
        return not late

    def _step(self, now: float) -> bool:
        changes = self._changes()
        if changes != self._kept and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._write(self._state(), changes))
        return False

    async def _write(self, state: KeptState, changes: int) -> None:
        try:
            await asyncio.to_thread(_write_state, self._file, state)
        except OSError as error:
            self.failures += 1
            self.failures_in_a_row += 1
            fields = {"path": str(self._file.path), "error": str(error)}
            log.warning("the state file could not be written", extra={"fields": fields})
        else:
            self._kept, self.failures_in_a_row = changes, 0

    async def _read(self) -> KeptState | None:
        try:
            return await asyncio.to_thread(_read_state, self._file)
        except (OSError, ValueError, RecursionError) as error:
            await asyncio.to_thread(self._file.refuse, error, "the state file cannot be used")
            return None


async def _of_peer(peer: str, http: HttpClient) -> KeptState | None:
    """None: it has none, or no workers."""
    url = peer.rstrip("/") + "/state"
    try:
        content = await http.body(
            url,
            accept="application/json",
            bytes_max=STATE.bytes_max,
            timeout_s=PEER_S,
            purpose="recovery",
            with_key=True,
        )
        state = await asyncio.to_thread(msgspec.json.decode, content, type=KeptState)
    except (HttpError, *UNREADABLE) as error:
        fields = {"peer": peer, "error": str(error)[:200]}
        log.info("a peer does not tell its state", extra={"fields": fields})
        return None
    return state if state.workers else None


def _read_state(file: KeptFile) -> KeptState | None:
    """None: there is none.  Raises OSError, ValueError, RecursionError."""
    content = file.read()
    return None if content is None else msgspec.json.decode(content, type=KeptState)


def _write_state(file: KeptFile, state: KeptState) -> None:
    """Raises OSError."""
    file.write(msgspec.json.encode(state))
