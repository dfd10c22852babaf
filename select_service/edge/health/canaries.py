"""Sends canaries when they are due, and tells what came of them.

Who is due, how many at a time and how often one is repeated is decided by the owner; here it is
carried out: in a form that the engine takes, over a connection of its own, never while our own loop
is late, and with its time.
"""

import asyncio
from itertools import count
from time import monotonic
from typing import NamedTuple, Protocol

from indexer.sockets.names import Names
from select_service.core.health.checked import Attempt, CheckOrder
from select_service.core.health.kinds import Came
from select_service.core.identity import Rank
from select_service.edge.health.company import Company
from select_service.edge.health.forms import FIRST, PLAIN, Forms
from select_service.edge.health.lateness import STEP_S, Lateness
from select_service.edge.health.requests import Form, message
from select_service.edge.health.results import attempt_failed, attempt_of
from select_service.edge.health.targets import Target
from select_service.edge.http_error import HttpError
from select_service.edge.http_post import Reply, post
from select_service.edge.supervised import Callbacks
from select_service.tls.kept import ClientTls

BODY_BYTES_MAX = 1 << 20
IDLE_TOKENS_MAX = 2048
"""Prompt tokens that a rank may be busy with when it is asked, for its time to count."""
STOOD_STILL_PART = 0.5
"""Of the time for an answer: lost so much of it, this process has not waited for the answer."""
TURNS_BESIDES = 4
"""Of an engine, besides one for every token: connection, request, answer."""
REFUSALS = frozenset({400, 422})
"""Of an engine that does not know a field."""
_GONE = Attempt(Came.MISCONFIGURED, counts_latency=False, why="it has no endpoint to be asked at")
_OURS = Attempt(Came.MISCONFIGURED, counts_latency=False, why="the check itself failed")


class CheckOwner(Protocol):
    """Who decides.  Every order comes to an end by `attempted`; called on the event loop only."""

    def due(self, now: float) -> CheckOrder | None:
        """The next check that is to be made now."""

    def attempted(self, order: CheckOrder, attempt: Attempt, now: float) -> float | None:
        """Seconds until the same is to be asked again, None when the check is over."""

    def resumes(self, order: CheckOrder) -> bool:
        """They have passed: is there a place for it now?  If not it is asked again soon."""


class RankPlaces(Protocol):
    """Where ranks are; see `Targets`."""

    def of(self, rank: Rank) -> Target | None: ...
    def prefill_tokens(self, rank: Rank) -> int: ...


class _Asked(NamedTuple):
    attempt: Attempt
    status: int | None


class Canaries:
    """Belongs to the event loop.  `step` is a task that is due every STEP_S."""

    def __init__(
        self,
        owner: CheckOwner,
        places: RankPlaces,
        names: Names,
        callbacks: Callbacks,
        *,
        timeout_s: float,
        tls: ClientTls | None = None,
    ) -> None:
        """timeout_s: for one answer, from the name to the last byte.  tls: as in `http_post`"""
        self._owner = owner
        self._places = places
        self._names = names
        self._callbacks = callbacks
        self._timeout_s, self._tls = timeout_s, tls
        self._forms = Forms()
        self._lateness = Lateness(monotonic())
        self._company = Company()
        self._checks: set[asyncio.Task[None]] = set()

    def step(self, now: float) -> bool:
        """Begin what is due.  Nothing is ever left for the next turn."""
        was_late = self._lateness.is_late(now)
        self._lateness.look(now)
        while not was_late and (order := self._owner.due(now)) is not None:
            check = asyncio.create_task(self._check(order))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)
        return False

    async def stop(self) -> None:
        """Break off what is under way."""
        for check in self._checks:
            check.cancel()
        if self._checks:
            await asyncio.wait(self._checks)

    async def _check(self, order: CheckOrder) -> None:
        """One check to its end; a bug of ours is counted, and says nothing of the rank."""
        try:
            for seed in count(order.seed):
                pause_s = await self._attempted(order, seed)
                if pause_s is None:
                    return
                await asyncio.sleep(pause_s)
                while self._lateness.is_late(monotonic()) or not self._owner.resumes(order):
                    await asyncio.sleep(STEP_S)
        except Exception:
            self._callbacks.failed("canary")
            while self._owner.attempted(order, _OURS, monotonic()) is not None:
                """It would be asked again: so it comes to its end."""

    async def _attempted(self, order: CheckOrder, seed: int) -> float | None:
        attempt = await self._attempt(order, seed)
        return self._owner.attempted(order, attempt, monotonic())

    async def _attempt(self, order: CheckOrder, seed: int) -> Attempt:
        """One request, and another one in its place where the first one was none."""
        target = self._places.of(order.rank)
        if target is None:
            return _GONE
        lost_s = self._lateness.lost_s(monotonic())
        attempt = await self._in_a_form(order, target, seed)
        if attempt.came is Came.TIMEOUT and self._stood_still(lost_s):
            attempt = await self._in_a_form(order, target, seed)
        return attempt

    def _stood_still(self, lost_s: float) -> bool:
        """lost_s: all the time that had been lost when the request was sent"""
        now_lost_s = self._lateness.lost_s(monotonic())
        return now_lost_s - lost_s > STOOD_STILL_PART * self._timeout_s

    async def _in_a_form(self, order: CheckOrder, target: Target, seed: int) -> Attempt:
        known = self._forms.of(target)
        form = known or FIRST[target.api]
        asked = await self._ask(order, target, form, seed)
        if known is None and asked.status in REFUSALS:
            plain = await self._ask(order, target, PLAIN[target.api], seed)
            if plain.status not in REFUSALS:
                asked, form = plain, PLAIN[target.api]
        if asked.attempt.came is Came.ANSWER:
            self._forms.learnt(target, form)
        return asked.attempt

    async def _ask(self, order: CheckOrder, target: Target, form: Form, seed: int) -> _Asked:
        begun = self._lateness.moment(monotonic())
        is_idle = self._places.prefill_tokens(order.rank) <= IDLE_TOKENS_MAX
        try:
            with self._company.visit(target.endpoint) as visit:
                reply = await self._reply(order, target, form, seed)
        except HttpError as error:
            return _Asked(attempt_failed(error), None)
        now = monotonic()
        counts = is_idle and self._lateness.lost_s(now) == begun.lost_s
        turns = order.prompt.max_tokens + TURNS_BESIDES
        host_s = turns * self._lateness.turn_s(begun, now) + visit.waited_s
        by_ids = order.prompt.expected is not None
        return _Asked(attempt_of(reply, form, by_ids, counts, host_s * 1000.0), reply.status)

    async def _reply(self, order: CheckOrder, target: Target, form: Form, seed: int) -> Reply:
        """Raises HttpError."""
        prompt, rank = order.prompt, order.rank
        named_rank = rank.dp_rank if order.names_rank else None
        request = message(form, target.model, prompt.prompt, prompt.max_tokens, named_rank, seed)
        return await post(
            self._names,
            target.endpoint.rstrip("/") + request.path,
            request.content,
            request.headers,
            bytes_max=BODY_BYTES_MAX,
            timeout_s=self._timeout_s,
            tls=self._tls,
        )
