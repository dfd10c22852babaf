"""EDGE: proposers of somebody else, asked over HTTP in each tick.

    POST <url>   {"deployment": name, "tick": what the tick is told, "replicas": {role: ready}}
    answer       {"targets": [{"component": role, "type": "AT_LEAST", "replicas": 3}, ...],
                  "final": false, "reject": null}

One that does not answer, or with something else, has no opinion; after three failures it is not
asked for a minute.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from select_service.planner.config import ExternalProposer
from select_service.planner.core.inputs import (
    REPLICAS_MAX,
    Role,
    TickInput,
)
from select_service.planner.core.merge import Bound, Proposal, Target
from select_service.planner.outbound import Outbound, Unreachable
from select_service.unreadable_json import UNREADABLE

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
FAILURES_MAX = 3
PAUSE_S = 60.0


class _Target(Struct, frozen=True, forbid_unknown_fields=True):
    component: Role
    type: Bound
    replicas: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]


class _Answer(Struct, frozen=True, forbid_unknown_fields=True):
    targets: Annotated[tuple[_Target, ...], Meta(max_length=16)] = ()
    final: bool = False
    reject: Annotated[str, Meta(max_length=1000)] | None = None


class _Asked(Struct, frozen=True):
    deployment: str
    tick: TickInput
    replicas: Mapping[Role, int]


class Breaker:
    """Is somebody asked who failed before?"""

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def is_open(self, now: float) -> bool:
        return now < self._until

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, now: float) -> None:
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            self._failures, self._until = 0, now + PAUSE_S


class ExternalProposers:
    """Belongs to one event loop."""

    def __init__(
        self, proposers: Sequence[ExternalProposer], http: Outbound, clock: Callable[[], float]
    ) -> None:
        """clock: seconds that never go back"""
        self._proposers = proposers
        self._http = http
        self._clock = clock
        self._breakers = {each.name: Breaker() for each in proposers}
        self.failures = dict.fromkeys(self._breakers, 0)

    async def ask(self, deployment: str, tick: TickInput) -> tuple[Proposal, ...]:
        """What they say, in the order of the configuration; takes `TIMEOUT_S` at most."""
        if not self._proposers:
            return ()
        replicas = {role: each.ready for role, each in tick.replicas.items()}
        body = msgspec.json.encode(_Asked(deployment, tick, replicas))
        said = await asyncio.gather(*(self._ask(each, body) for each in self._proposers))
        return tuple(each for each in said if each is not None)

    async def _ask(self, proposer: ExternalProposer, body: bytes) -> Proposal | None:
        breaker = self._breakers[proposer.name]
        if breaker.is_open(self._clock()):
            return None
        try:
            text = await self._http.post(proposer.url, body, timeout_s=TIMEOUT_S)
            answer = msgspec.json.decode(text, type=_Answer)
        except (Unreachable, *UNREADABLE) as error:
            self.failures[proposer.name] += 1
            breaker.failed(self._clock())
            fields = {"proposer": proposer.name, "error": str(error)}
            log.warning("an external proposer has no opinion", extra={"fields": fields})
            return None
        breaker.succeeded()
        return Proposal(
            source=proposer.name,
            priority=proposer.priority,
            targets=tuple(Target(t.component, t.type, t.replicas) for t in answer.targets),
            final=answer.final,
            reject=answer.reject,
        )
