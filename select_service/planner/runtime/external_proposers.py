"""External proposers, requested over HTTP in each tick.

    POST <url>   {"deployment": name, "tick": input of the tick, "replicas": {role: ready}}
    answer       {"targets": [{"component": role, "type": "AT_LEAST", "replicas": 3}, ...],
                  "final": false, "reject": null}

A missing or invalid answer is no opinion; after three failures a proposer is skipped for a minute.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.net.http_client.http_error import HttpError
from select_service.planner.config import ExternalProposerConfig
from select_service.planner.core.proposal_merge import BoundType, Proposal, ProposedCount
from select_service.planner.core.tick_input import REPLICAS_MAX, Role, TickInput
from select_service.planner.planner_http import PlannerHttpClient

log = logging.getLogger("select_service.planner")

TIMEOUT_S = 2.0
FAILURES_MAX = 3
PAUSE_S = 60.0


class _ProposedTarget(Struct, frozen=True, forbid_unknown_fields=True):
    component: Role
    type: BoundType
    replicas: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]


class _ProposalAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    targets: Annotated[tuple[_ProposedTarget, ...], Meta(max_length=16)] = ()
    final: bool = False
    reject: Annotated[str, Meta(max_length=1000)] | None = None


class _ProposalRequest(Struct, frozen=True):
    deployment: str
    tick: TickInput
    replicas: Mapping[Role, int]


class ProposerBreaker:
    """Circuit breaker of a proposer."""

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def is_open(self, now: float) -> bool:
        """Return whether the proposer is skipped."""
        return now < self._until

    def record_success(self) -> None:
        """Reset the failures."""
        self._failures = 0

    def record_failure(self, now: float) -> None:
        """Count a failure, and open after too many."""
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            # The count restarts, so that after the pause a single failure does not open the breaker
            # again.
            self._failures, self._until = 0, now + PAUSE_S


class ExternalProposers:
    """Client of all external proposers. Belongs to one event loop."""

    def __init__(
        self,
        proposers: Sequence[ExternalProposerConfig],
        http: PlannerHttpClient,
        clock: Callable[[], float],
    ) -> None:
        """Create the client. clock: monotonic seconds"""
        self._proposers = proposers
        self._http = http
        self._clock = clock
        self._breakers = {each.name: ProposerBreaker() for each in proposers}
        self.failures = dict.fromkeys(self._breakers, 0)

    async def request_proposals(self, deployment: str, tick: TickInput) -> tuple[Proposal, ...]:
        """Return the proposals in the order of the configuration, within `TIMEOUT_S`."""
        if not self._proposers:
            return ()
        replicas = {role: each.ready for role, each in tick.replicas.items()}
        body = msgspec.json.encode(_ProposalRequest(deployment, tick, replicas))
        said = await asyncio.gather(
            *(self._request_proposal(each, body) for each in self._proposers)
        )
        return tuple(each for each in said if each is not None)

    async def _request_proposal(
        self, proposer: ExternalProposerConfig, body: bytes
    ) -> Proposal | None:
        """Return the proposal of a proposer, or None."""
        breaker = self._breakers[proposer.name]
        if breaker.is_open(self._clock()):
            return None
        try:
            text = await self._http.post(proposer.url, body, timeout_s=TIMEOUT_S)
            answer = msgspec.json.decode(text, type=_ProposalAnswer)
        except (HttpError, *DECODE_ERRORS) as error:
            self.failures[proposer.name] += 1
            breaker.record_failure(self._clock())
            fields = {"proposer": proposer.name, "error": str(error)}
            log.warning("external proposer failed", extra={"fields": fields})
            return None
        breaker.record_success()
        return Proposal(
            source=proposer.name,
            priority=proposer.priority,
            targets=tuple(ProposedCount(t.component, t.type, t.replicas) for t in answer.targets),
            final=answer.final,
            reject=answer.reject,
        )
