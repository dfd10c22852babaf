"""Decisions that are fetched, carried out and acknowledged by somebody else, over HTTP.

The state is on the disk before anybody can see it, so a planner that starts again goes on with the
same numbers.  `virtual_routes` serves it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import time
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from select_service.checked_json import with_checksum, without_checksum
from select_service.command_line import file_fault
from select_service.planner.connectors.base import (
    ConnectorError,
    ConnectorUnavailable,
    Counts,
    Decision,
    ReadyCounts,
    RoleDecision,
    Status,
    check_counts,
    everywhere,
)
from select_service.planner.connectors.draining import Drain, Drainer
from select_service.planner.connectors.virtual_document import DocumentState
from select_service.planner.connectors.virtual_state import (
    Change,
    Completion,
    VirtualDecision,
    VirtualState,
)
from select_service.planner.core.inputs import Replicas, Role
from select_service.whole_file import PRIVATE, read_whole, write_whole

STATE_BYTES_MAX = 1 << 20
FORMAT = "select-planner decisions"
_HEAD = b'{"format":"' + FORMAT.encode() + b'",'
WAITERS_MAX = 64
"""Callers that may wait for a decision at a time."""
WAIT_S_MAX = 60.0
"""Seconds that one may wait."""

_STATUS = {
    Change.DECIDED: Status.APPLIED,
    Change.SUPERSEDED: Status.APPLIED,
    Change.UNCHANGED: Status.UNCHANGED,
    Change.KEPT: Status.OPEN,
    Change.DROPPED: Status.OPEN,
}


class TooManyWaiters(Exception):
    """`WAITERS_MAX` callers wait already."""


class VirtualConnector:
    """One deployment.

    path: where the state is kept; None: nowhere, it ends with the process.  mode: of the file.
    ready: see ReadyCounts; without it, or while it knows nothing, acknowledgements count.
    """

    def __init__(
        self,
        path: Path | None,
        ready: ReadyCounts | None = None,
        drainer: Drainer | None = None,
        *,
        profile: Literal["ours", "document"] = "ours",
        mode: int = PRIVATE,
        clock: Callable[[], float] = time,
    ) -> None:
        self._path, self._mode = path, mode
        self._ready = ready
        self._drainer = drainer
        self._clock = clock
        self._state: VirtualState | DocumentState = _stored(path, profile)
        self._changing = asyncio.Lock()
        self._decided = asyncio.Condition()
        self._waiters = 0
        self._is_ending = False
        self._drain: Drain | None = None
        self._faults: dict[Role, str] = {}

    @property
    def decision(self) -> VirtualDecision:
        """The newest."""
        return self._state.decision

    @property
    def is_open(self) -> bool:
        """Is it not acknowledged yet?"""
        return self._state.is_open

    @property
    def kept(self) -> Mapping[Role, int] | None:
        """A newer wish that has not replaced the open decision yet."""
        return self._state.kept

    async def read(self) -> Mapping[Role, Replicas]:
        """See Connector."""
        ready = await self._ready_counts()
        observed = self._state.observed(ready, self._clock())
        if observed is not self._state:
            async with self._changing:
                await self._keep(self._state.observed(ready, self._clock()))
        self._faults = {
            role: f"nobody has said how many replicas of {role.value} there are"
            for role in Role
            if role not in ready
        }
        return {role: self._replicas(role, count) for role, count in ready.items()}

    async def _ready_counts(self) -> Mapping[Role, int]:
        seen = None if self._ready is None else await self._ready()
        if seen is not None:
            return seen
        state = self._state
        if not state.is_open and not state.reported:
            decided = {role: state.decision.count(role) for role in Role}
            return {role: count for role, count in decided.items() if count is not None}
        return state.reported

    def _replicas(self, role: Role, ready: int) -> Replicas:
        expected = self._state.expected(role)
        leaving = self._drain is not None and role in self._drain.roles
        if expected is None:
            return Replicas(ready=ready, expected=ready, in_progress=leaving)
        return Replicas(
            ready=ready,
            expected=expected,
            pending=max(0, expected - ready),
            in_progress=leaving or ready != expected,
            startup_only=not leaving and ready < expected,
        )

    def faults(self) -> Mapping[Role, str]:
        """See Connector."""
        return self._faults

    async def scale(self, wanted: Counts) -> Decision:
        """See Connector.  Raises ConnectorUnavailable when the state cannot be written."""
        check_counts(wanted)
        await self._forget_drain()
        fewer = await self._reductions(wanted)
        if self._drainer is not None and fewer:
            before = self._drain
            try:
                drain = await self._drainer.choose(before, fewer, wanted)
            except ConnectorUnavailable as error:
                return everywhere(wanted, Status.FAILED, str(error))
            await self._note_drain((*self._draining_now, *drain.workers))
            self._drain = drain
            self._drain = await self._drainer.begin(before, drain)
            if not self._drain.is_over:
                return self._draining(self._drain)
        else:
            await self._take_back()
        return await self._update(wanted)

    @property
    def _draining_now(self) -> tuple[int, ...]:
        """Workers that drain for no decision yet, those of the process before this included."""
        return self._state.draining if isinstance(self._state, VirtualState) else ()

    async def _note_drain(self, workers: Iterable[int]) -> None:
        """On the disk before anybody is asked, so that whoever comes after us can take it back."""
        async with self._changing:
            if isinstance(self._state, VirtualState):
                draining = tuple(sorted(set(workers)))
                await self._keep(msgspec.structs.replace(self._state, draining=draining))

    async def _forget_drain(self) -> None:
        """What drained for a wish that nobody remembers serves again, as soon as all hear it."""
        workers = self._draining_now
        if self._drainer is None or self._drain is not None or not workers:
            return
        if await self._drainer.cancel(workers):
            await self._note_drain(())

    async def _take_back(self) -> None:
        """Workers that drain for a decision not made yet serve again."""
        self._drain = None
        await self._forget_drain()

    async def _reductions(self, wanted: Counts) -> Mapping[Role, int]:
        """How many of those that are there have to go, by role; starts are only withdrawn."""
        drain = self._drain
        if drain is not None and drain.wanted == wanted:
            return drain.fewer
        ready = await self._ready_counts()
        fewer = {}
        for role, count in wanted.items():
            expected = self._state.expected(role)
            there = expected or 0
            if role in ready:
                there = ready[role] + (0 if drain is None else len(drain.of_role(role)))
                there = there if expected is None else min(expected, there)
            if count < there:
                fewer[role] = there - count
        return fewer

    def _draining(self, drain: Drain) -> Decision:
        roles = {
            role: RoleDecision(
                wanted=count,
                status=Status.DRAINING if role in drain.roles else Status.WAITING,
                victims=tuple(str(worker) for worker in drain.of_role(role)),
            )
            for role, count in drain.wanted.items()
        }
        return Decision(roles=roles, decision_id=self.decision.decision_id)

    async def _update(self, wanted: Counts) -> Decision:
        drain = self._drain
        victims = () if drain is None else drain.workers
        async with self._changing:
            state, change = self._state.updated(wanted, self._clock(), victims)
            await self._keep(state)
        if change in (Change.DECIDED, Change.SUPERSEDED, Change.UNCHANGED):
            self._drain = None
        if change in (Change.DECIDED, Change.SUPERSEDED):
            async with self._decided:
                self._decided.notify_all()
        decided = {
            role: RoleDecision(
                wanted=count,
                status=_STATUS[change],
                detail=str(change),
                victims=() if drain is None else tuple(map(str, drain.of_role(role))),
            )
            for role, count in wanted.items()
        }
        return Decision(roles=decided, decision_id=self.decision.decision_id)

    async def _keep(self, state: VirtualState | DocumentState) -> None:
        """Raises ConnectorUnavailable, and nothing has changed."""
        if state == self._state:
            return
        if self._path is not None:
            content = with_checksum(_HEAD + msgspec.json.encode(state)[1:])
            try:
                await asyncio.to_thread(write_whole, self._path, content, self._mode)
            except OSError as error:
                raise ConnectorUnavailable(f"{self._path}: {error.strerror or error}") from None
        self._state = state

    async def complete(self, decision_id: int, reported: Counts) -> Completion:
        """An acknowledgement.  Raises UnknownDecision, ConnectorUnavailable."""
        async with self._changing:
            state, completion = self._state.completed(decision_id, self._clock(), reported)
            await self._keep(state)
        async with self._decided:
            self._decided.notify_all()
        return completion

    async def after(self, decision_id: int, timeout_s: float) -> VirtualDecision:
        """The newest decision; waits for one beyond `decision_id`, for so long at most.

        Raises TooManyWaiters.
        """
        if self.decision.decision_id > decision_id or timeout_s <= 0:
            return self.decision
        await self._await(lambda: self.decision.decision_id > decision_id, timeout_s)
        return self.decision

    async def _await(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        if self._waiters >= WAITERS_MAX:
            raise TooManyWaiters
        self._waiters += 1
        try:
            async with asyncio.timeout(min(timeout_s, WAIT_S_MAX)), self._decided:
                await self._decided.wait_for(lambda: self._is_ending or is_so())
        except TimeoutError:
            pass
        finally:
            self._waiters -= 1

    async def end_polls(self) -> None:
        """Answer everybody who waits for a decision, now and from now on: the process ends."""
        self._is_ending = True
        async with self._decided:
            self._decided.notify_all()

    async def wait(self, timeout_s: float) -> bool:
        """See Connector.  What drained is decided here."""
        await self._forget_drain()
        if self._drainer is not None and self._drain is not None:
            self._drain = await self._drainer.step(self._drain)
            if not self._drain.is_over:
                return False
            await self._update(self._drain.wanted)
        if timeout_s > 0 and self.is_open:
            await self._await(lambda: not self.is_open, timeout_s)
        return not self.is_open and self._drain is None

    async def validate(self) -> None:
        """See Connector."""
        if self._path is not None and not self._path.parent.is_dir():
            raise ConnectorError(f"{self._path}: there is no directory {self._path.parent}")

    async def pause(self) -> None:
        """See Connector.  Workers that drain for a decision not made yet serve again."""
        await self._take_back()

    async def close(self) -> None:
        """See Connector."""
        await self.pause()
        if self._drainer is not None:
            await self._drainer.close()


def _content(path: Path | None) -> bytes | None:
    """None: there is no file yet.  Raises OSError, ValueError for one that is larger."""
    try:
        return None if path is None else read_whole(path, STATE_BYTES_MAX)
    except FileNotFoundError:
        return None


def _stored(path: Path | None, profile: str) -> VirtualState | DocumentState:
    """Raises ConnectorError for a file that is none of ours."""
    try:
        content = _content(path)
        if profile == "document":
            return DocumentState() if content is None else _decoded(content, DocumentState)
        return VirtualState() if content is None else _decoded(content, VirtualState)
    except OSError as error:
        raise ConnectorError(f"connector.path: {file_fault(str(path), error)}") from None
    except ValueError as error:
        raise ConnectorError(
            f"connector.path: `{path}` holds no decisions of a planner: {error}; give another file"
        ) from None


class _Named(msgspec.Struct):
    """What tells our files; those of before they had a format have a decision."""

    format: str | None = None
    decision: Raw | UnsetType = UNSET


_State = TypeVar("_State", VirtualState, DocumentState)


def _decoded(content: bytes, kind: type[_State]) -> _State:
    """Raises ValueError."""
    document, _ = without_checksum(content)
    named = msgspec.json.decode(document, type=_Named)
    if named.format != FORMAT and (named.format is not None or named.decision is UNSET):
        raise ValueError(f"its format is not `{FORMAT}`: name another file")
    return msgspec.json.decode(document, type=kind)
