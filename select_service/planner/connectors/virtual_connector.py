"""Connector with decisions that are fetched, carried out and acknowledged by an external program.

The state is on disk before any client can read it, so a restarted planner continues with the same
numbers.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import time
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from select_service.base.command_line import file_error_text
from select_service.files.atomic_file import PRIVATE_MODE, read_whole, write_whole
from select_service.files.json_checksum import add_checksum, split_checksum
from select_service.planner.connectors.connector import (
    ConnectorDecision,
    ConnectorError,
    ConnectorStatus,
    ConnectorUnavailable,
    DesiredCounts,
    ReadReadyCounts,
    RoleOutcome,
    check_counts,
    same_outcome,
)
from select_service.planner.connectors.virtual_reference_state import ReferenceDecisionState
from select_service.planner.connectors.virtual_state import (
    AcknowledgementEffect,
    CountsEffect,
    VirtualDecision,
    VirtualState,
)
from select_service.planner.connectors.worker_drain import WorkerDrain, WorkerDrainer
from select_service.planner.core.tick_input import Role, RoleReplicas

STATE_BYTES_MAX = 1 << 20
FORMAT = "select-planner decisions"
_HEAD = b'{"format":"' + FORMAT.encode() + b'",'
WAITERS_MAX = 64
"""Maximum number of callers that wait for a decision."""
WAIT_S_MAX = 60.0
"""Maximum wait of a caller, seconds."""

_STATUS = {
    CountsEffect.DECIDED: ConnectorStatus.APPLIED,
    CountsEffect.SUPERSEDED: ConnectorStatus.APPLIED,
    CountsEffect.UNCHANGED: ConnectorStatus.UNCHANGED,
    CountsEffect.KEPT: ConnectorStatus.OPEN,
    CountsEffect.DROPPED: ConnectorStatus.OPEN,
}


class TooManyPolls(Exception):
    """Error of a caller beyond `WAITERS_MAX`."""


class VirtualConnector:
    """Virtual connector of a deployment.

    path:  file of the state; None means the state ends with the process
    mode:  mode of the file
    ready: function for serving replicas; without the function, or without an answer,
        acknowledgements count
    """

    def __init__(
        self,
        path: Path | None,
        ready: ReadReadyCounts | None = None,
        drainer: WorkerDrainer | None = None,
        *,
        profile: Literal["ours", "document"] = "ours",
        mode: int = PRIVATE_MODE,
        clock: Callable[[], float] = time,
    ) -> None:
        self._path, self._mode = path, mode
        self._ready = ready
        self._drainer = drainer
        self._clock = clock
        self._state: VirtualState | ReferenceDecisionState = _load_state(path, profile)
        self._changing = asyncio.Lock()
        self._decision_changed = asyncio.Condition()
        self._waiters = 0
        self._is_ending = False
        self._drain: WorkerDrain | None = None
        self._faults: dict[Role, str] = {}

    @property
    def decision(self) -> VirtualDecision:
        """Newest decision."""
        return self._state.decision

    @property
    def is_open(self) -> bool:
        """Whether the newest decision is not acknowledged yet."""
        return self._state.is_open

    @property
    def kept_counts(self) -> Mapping[Role, int] | None:
        """Newer desired counts that have not replaced the open decision yet."""
        return self._state.kept_counts

    async def read(self) -> Mapping[Role, RoleReplicas]:
        """See Connector."""
        ready = await self._read_ready_counts()
        observed = self._state.with_observation(ready, self._clock())
        if observed is not self._state:
            async with self._changing:
                await self._store_state(self._state.with_observation(ready, self._clock()))
        self._faults = {
            role: (
                f"the number of {role.value} replicas is unknown until an acknowledgement "
                "reports it"
            )
            for role in Role
            if role not in ready
        }
        return {role: self._replicas_of(role, count) for role, count in ready.items()}

    async def _read_ready_counts(self) -> Mapping[Role, int]:
        """Return the ready replicas: observed, else decided, else acknowledged."""
        seen = None if self._ready is None else await self._ready()
        if seen is not None:
            return seen
        state = self._state
        # The external program acknowledged without counts: it is taken to have done as decided.
        if not state.is_open and not state.reported:
            decided = {role: state.decision.role_count(role) for role in Role}
            return {role: count for role, count in decided.items() if count is not None}
        return state.reported

    def _replicas_of(self, role: Role, ready: int) -> RoleReplicas:
        """Return the replicas of a role."""
        expected = self._state.expected_count(role)
        leaving = self._drain is not None and role in self._drain.roles
        going = 0 if self._drain is None else self._drain.fewer.get(role, 0)
        if expected is None:
            # Never decided: whether workers that are not ready have a replica is unknown.
            return RoleReplicas(ready=ready, in_progress=leaving, draining=going)
        return RoleReplicas(
            ready=ready,
            expected=expected,
            pending=max(0, expected - ready),
            in_progress=leaving or ready != expected,
            startup_only=not leaving and ready < expected,
            draining=going,
        )

    def faults(self) -> Mapping[Role, str]:
        """See Connector."""
        return self._faults

    async def scale(self, wanted: DesiredCounts, lost: tuple[int, ...] = ()) -> ConnectorDecision:
        """See Connector.  Raises ConnectorUnavailable if the state cannot be written."""
        check_counts(wanted)
        await self._undo_forgotten_drain()
        fewer = await self._count_reductions(wanted)
        if self._drainer is not None and fewer:
            before = self._drain
            try:
                drain = await self._drainer.choose_workers(before, fewer, wanted)
            except ConnectorUnavailable as error:
                return same_outcome(wanted, ConnectorStatus.FAILED, str(error))
            # On disk before the first request: a successor must be able to undo every drain.
            await self._note_drain((*self._draining_now, *drain.worker_ids))
            self._drain = drain
            self._drain = await self._drainer.begin_drain(before, drain)
            if not self._drain.is_over:
                # A loss waits for the end of the drain, so that one decision tells both.
                return self._draining_outcome(self._drain)
        else:
            await self._undo_drain()
        return await self._update_state(wanted, lost)

    @property
    def _draining_now(self) -> tuple[int, ...]:
        """Workers that drain without a decision yet, including those of an earlier process."""
        return self._state.draining if isinstance(self._state, VirtualState) else ()

    async def _note_drain(self, workers: Iterable[int]) -> None:
        """Store the draining workers before any request, so that a successor can undo the drain."""
        async with self._changing:
            if isinstance(self._state, VirtualState):
                draining = tuple(sorted(set(workers)))
                await self._store_state(msgspec.structs.replace(self._state, draining=draining))

    async def _undo_forgotten_drain(self) -> None:
        """Make workers of a forgotten drain serve again, once all selectors confirm."""
        workers = self._draining_now
        if self._drainer is None or self._drain is not None or not workers:
            return
        if await self._drainer.cancel_drain(workers):
            await self._note_drain(())

    async def _undo_drain(self) -> None:
        """Make workers that drain for a pending decision serve again."""
        self._drain = None
        await self._undo_forgotten_drain()

    async def _count_reductions(self, wanted: DesiredCounts) -> Mapping[Role, int]:
        """Return the number of running replicas to remove, by role.

        Start-ups are only withdrawn.
        """
        drain = self._drain
        if drain is not None and drain.wanted == wanted:
            return drain.fewer
        ready = await self._read_ready_counts()
        fewer = {}
        for role, count in wanted.items():
            expected = self._state.expected_count(role)
            there = expected or 0
            if role in ready:
                # Draining workers have left the ready count, but still occupy their replicas.
                there = ready[role] + (0 if drain is None else len(drain.workers_of_role(role)))
                there = there if expected is None else min(expected, there)
            if count < there:
                fewer[role] = there - count
        return fewer

    def _draining_outcome(self, drain: WorkerDrain) -> ConnectorDecision:
        """Return the outcome during a drain."""
        roles = {
            role: RoleOutcome(
                wanted=count,
                status=ConnectorStatus.DRAINING if role in drain.roles else ConnectorStatus.WAITING,
                victims=tuple(str(worker) for worker in drain.workers_of_role(role)),
            )
            for role, count in drain.wanted.items()
        }
        return ConnectorDecision(roles=roles, decision_id=self.decision.decision_id)

    async def _update_state(
        self, wanted: DesiredCounts, lost: tuple[int, ...] = ()
    ) -> ConnectorDecision:
        """Update the state with desired counts and workers to replace, and wake callers."""
        drain = self._drain
        victims = () if drain is None else drain.worker_ids
        async with self._changing:
            state, change = self._state.with_counts(wanted, self._clock(), victims, lost)
            await self._store_state(state)
        if change in (CountsEffect.DECIDED, CountsEffect.SUPERSEDED, CountsEffect.UNCHANGED):
            self._drain = None
        if change in (CountsEffect.DECIDED, CountsEffect.SUPERSEDED):
            async with self._decision_changed:
                self._decision_changed.notify_all()
        decided = {
            role: RoleOutcome(
                wanted=count,
                status=_STATUS[change],
                detail=str(change),
                victims=() if drain is None else tuple(map(str, drain.workers_of_role(role))),
            )
            for role, count in wanted.items()
        }
        begun = tuple(worker for worker in lost if worker in self.decision.replace)
        return ConnectorDecision(
            roles=decided, decision_id=self.decision.decision_id, replaced=begun
        )

    async def _store_state(self, state: VirtualState | ReferenceDecisionState) -> None:
        """Write a new state. Raises ConnectorUnavailable, without a change."""
        if state == self._state:
            return
        if self._path is not None:
            content = add_checksum(_HEAD + msgspec.json.encode(state)[1:])
            try:
                await asyncio.to_thread(write_whole, self._path, content, self._mode)
            except OSError as error:
                raise ConnectorUnavailable(f"{self._path}: {error.strerror or error}") from None
        # Only after the write: a client must never see a decision that a crash could lose.
        self._state = state

    async def acknowledge(self, decision_id: int, reported: DesiredCounts) -> AcknowledgementEffect:
        """Record an acknowledgement.  Raises UnknownDecisionNumber, ConnectorUnavailable."""
        async with self._changing:
            state, completion = self._state.with_acknowledgement(
                decision_id, self._clock(), reported
            )
            await self._store_state(state)
        async with self._decision_changed:
            self._decision_changed.notify_all()
        return completion

    async def wait_for_decision(self, decision_id: int, timeout_s: float) -> VirtualDecision:
        """Return the newest decision, after a wait for a decision beyond `decision_id`.

        timeout_s: maximum wait
        Raises TooManyPolls.
        """
        if self.decision.decision_id > decision_id or timeout_s <= 0:
            return self.decision
        await self._wait_until(lambda: self.decision.decision_id > decision_id, timeout_s)
        return self.decision

    async def _wait_until(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a condition. Raises TooManyPolls."""
        if self._waiters >= WAITERS_MAX:
            raise TooManyPolls
        self._waiters += 1
        try:
            # Bounded: a client with a long timeout must not occupy a place for ever.
            async with asyncio.timeout(min(timeout_s, WAIT_S_MAX)), self._decision_changed:
                # Shutdown answers all waiting callers at once.
                await self._decision_changed.wait_for(lambda: self._is_ending or is_so())
        except TimeoutError:
            pass
        finally:
            self._waiters -= 1

    async def end_polls(self) -> None:
        """Answer all waiting callers, now and from now on, as the process ends."""
        self._is_ending = True
        async with self._decision_changed:
            self._decision_changed.notify_all()

    async def wait(self, timeout_s: float) -> bool:
        """See Connector.  Drained replicas are decided here."""
        await self._undo_forgotten_drain()
        if self._drainer is not None and self._drain is not None:
            self._drain = await self._drainer.step_drain(self._drain)
            if not self._drain.is_over:
                return False
            await self._update_state(self._drain.wanted)
        if timeout_s > 0 and self.is_open:
            await self._wait_until(lambda: not self.is_open, timeout_s)
        return not self.is_open and self._drain is None

    async def validate(self) -> None:
        """See Connector."""
        if self._path is not None and not self._path.parent.is_dir():
            raise ConnectorError(f"{self._path}: directory {self._path.parent} does not exist")

    async def pause(self) -> None:
        """See Connector.  Workers that drain for a pending decision serve again."""
        await self._undo_drain()

    async def close(self) -> None:
        """See Connector."""
        await self.pause()
        if self._drainer is not None:
            await self._drainer.close()


def _load_state(path: Path | None, profile: str) -> VirtualState | ReferenceDecisionState:
    """Load the state. Raises ConnectorError for a file with other content."""
    kind = ReferenceDecisionState if profile == "document" else VirtualState
    try:
        return kind() if path is None else _decode_state(read_whole(path, STATE_BYTES_MAX), kind)
    except FileNotFoundError:
        return kind()
    except OSError as error:
        raise ConnectorError(f"connector.path: {file_error_text(str(path), error)}") from None
    except ValueError as error:
        raise ConnectorError(
            f"connector.path: `{path}` is not a decision file of a planner: {error}; name "
            "another file"
        ) from None


class _StateFileHead(msgspec.Struct):
    """Head of a state file; files older than the format have a decision."""

    format: str | None = None
    decision: Raw | UnsetType = UNSET


def _decode_state(
    content: bytes, kind: type[VirtualState | ReferenceDecisionState]
) -> VirtualState | ReferenceDecisionState:
    """Decode a state file. Raises ValueError."""
    document, _ = split_checksum(content)
    named = msgspec.json.decode(document, type=_StateFileHead)
    if named.format != FORMAT and (named.format is not None or named.decision is UNSET):
        raise ValueError(f"its format is not `{FORMAT}`")
    return msgspec.json.decode(document, type=kind)
