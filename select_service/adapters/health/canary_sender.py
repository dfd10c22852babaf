"""Sender of canaries: sends due checks and reports their results to the owner.

The owner decides which rank is checked, how many checks run and how often one is repeated.  This
module carries the checks out: in a format that the engine accepts, over a fresh connection, timed,
and never while the own event loop is late.
"""

import asyncio
from itertools import count
from time import monotonic
from typing import NamedTuple, Protocol

from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.adapters.health.attempt_results import make_attempt, make_failed_attempt
from select_service.adapters.health.canary_requests import Form, make_canary_request
from select_service.adapters.health.canary_targets import CanaryTarget
from select_service.adapters.health.loop_lag import MEASURE_INTERVAL_S, LoopLag
from select_service.adapters.health.probe_contention import ProbeContention
from select_service.adapters.health.request_formats import (
    FALLBACK_FORMAT,
    FIRST_FORMAT,
    RequestFormats,
)
from select_service.adapters.probe_http import TimedHttpClient, TimedResponse
from select_service.core.health.checks.check_state import Attempt, CheckOrder
from select_service.core.health.health_kinds import AttemptResult
from select_service.core.identity import Rank
from select_service.net.http_client.http_error import HttpError

BODY_BYTES_MAX = 1 << 20
IDLE_TOKENS_MAX = 2048
"""Maximum number of queued prompt tokens on a rank at which a latency still counts."""
STALLED_FRACTION = 0.5
"""Fraction of the time limit; with more time lost by the own loop, a timeout proves nothing."""
EXTRA_TURNS = 4
"""Scheduling turns of an engine beyond one per token: connection, request, response."""
REJECTED_STATUSES = frozenset({400, 422})
"""Status codes of an engine that rejects an unknown field."""
_GONE = Attempt(
    AttemptResult.MISCONFIGURED, counts_latency=False, why="the worker has no usable endpoint"
)
_OURS = Attempt(AttemptResult.MISCONFIGURED, counts_latency=False, why="the check itself failed")


class CheckOwner(Protocol):
    """Decision maker for checks; called on the event loop only.

    Every order ends with a call of `process_attempt` that returns None.
    """

    def next_due_check(self, now: float) -> CheckOrder | None:
        """Return the next check due now, or None."""

    def process_attempt(self, order: CheckOrder, attempt: Attempt, now: float) -> float | None:
        """Record an attempt; return the seconds until its repetition, or None when the check is
        over.
        """

    def may_continue(self, order: CheckOrder) -> bool:
        """Return whether the repetition may be sent now; the caller asks again soon if not."""


class CanaryTargetFinder(Protocol):
    """Lookup of canary destinations; see `CanaryTargets`."""

    def find_target(self, rank: Rank) -> CanaryTarget | None: ...
    def prefill_tokens(self, rank: Rank) -> int: ...


class _CheckedAttempt(NamedTuple):
    attempt: Attempt
    status: int | None


class CanarySender:
    """Sender of canaries.  Belongs to the event loop.

    `send_due` is a periodic task with interval MEASURE_INTERVAL_S.
    """

    def __init__(
        self,
        owner: CheckOwner,
        places: CanaryTargetFinder,
        client: TimedHttpClient,
        callbacks: GuardedCallbacks,
        *,
        timeout_s: float,
    ) -> None:
        """timeout_s: time limit of a response, from name resolution to the last byte, seconds"""
        self._owner = owner
        self._targets = places
        self._client = client
        self._callbacks = callbacks
        self._timeout_s = timeout_s
        self._formats = RequestFormats()
        self._loop_lag = LoopLag(monotonic())
        self._contention = ProbeContention()
        self._checks: set[asyncio.Task[None]] = set()

    def send_due(self, now: float) -> bool:
        """Start the checks that are due; no work is left for the next iteration."""
        was_late = self._loop_lag.is_stalled(now)
        self._loop_lag.measure(now)
        # A late loop would measure its own delay, so due checks wait for the next step.
        while not was_late and (order := self._owner.next_due_check(now)) is not None:
            check = asyncio.create_task(self._run_check(order))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)
        return False

    async def stop(self) -> None:
        """Cancel running checks."""
        for check in self._checks:
            check.cancel()
        if self._checks:
            await asyncio.wait(self._checks)

    async def _run_check(self, order: CheckOrder) -> None:
        """Run one check to its end.

        An exception (a bug) is counted and leaves the rank's health unchanged.
        """
        try:
            for seed in count(order.seed):
                pause_s = await self._attempt_and_report(order, seed)
                if pause_s is None:
                    return
                await asyncio.sleep(pause_s)
                # The pause may end while this process is stalled or while other checks use the
                # permits.
                while self._loop_lag.is_stalled(monotonic()) or not self._owner.may_continue(order):
                    await asyncio.sleep(MEASURE_INTERVAL_S)
        except Exception:
            self._callbacks.record_failure("canary")
            while self._owner.process_attempt(order, _OURS, monotonic()) is not None:
                pass  # exhaust the retries so that the order is closed

    async def _attempt_and_report(self, order: CheckOrder, seed: int) -> float | None:
        attempt = await self._attempt_with_repeat(order, seed)
        return self._owner.process_attempt(order, attempt, monotonic())

    async def _attempt_with_repeat(self, order: CheckOrder, seed: int) -> Attempt:
        """Send a request; repeat it if this process was stalled during the time limit."""
        target = self._targets.find_target(order.rank)
        if target is None:
            return _GONE
        lost_s = self._loop_lag.lost_seconds(monotonic())
        attempt = await self._attempt_in_format(order, target, seed)
        # One repetition only: if this process stalls again, the regular retries follow.
        if attempt.result is AttemptResult.TIMEOUT and self._was_stalled(lost_s):
            attempt = await self._attempt_in_format(order, target, seed)
        return attempt

    def _was_stalled(self, lost_s: float) -> bool:
        """Return whether this process was stalled for most of the time limit.

        lost_s: total time lost by the loop before the request was sent, seconds
        """
        now_lost_s = self._loop_lag.lost_seconds(monotonic())
        return now_lost_s - lost_s > STALLED_FRACTION * self._timeout_s

    async def _attempt_in_format(
        self, order: CheckOrder, target: CanaryTarget, seed: int
    ) -> Attempt:
        known = self._formats.accepted_format(target)
        form = known or FIRST_FORMAT[target.api]
        asked = await self._send_request(order, target, form, seed)
        # Only without a remembered format: a rejection of an accepted format is a result of the
        # engine.
        if known is None and asked.status in REJECTED_STATUSES:
            plain = await self._send_request(order, target, FALLBACK_FORMAT[target.api], seed)
            if plain.status not in REJECTED_STATUSES:
                asked, form = plain, FALLBACK_FORMAT[target.api]
        if asked.attempt.result is AttemptResult.ANSWER:
            self._formats.record_format(target, form)
        return asked.attempt

    async def _send_request(
        self, order: CheckOrder, target: CanaryTarget, form: Form, seed: int
    ) -> _CheckedAttempt:
        begun = self._loop_lag.totals_at(monotonic())
        is_idle = self._targets.prefill_tokens(order.rank) <= IDLE_TOKENS_MAX
        try:
            with self._contention.start_span(target.endpoint) as visit:
                reply = await self._post_canary(order, target, form, seed)
        except HttpError as error:
            return _CheckedAttempt(make_failed_attempt(error), None)
        now = monotonic()
        # A latency counts only if neither the rank was busy nor this process stalled.
        counts = is_idle and self._loop_lag.lost_seconds(now) == begun.lost_s
        turns = order.prompt.max_tokens + EXTRA_TURNS
        # Part of the latency that this host and other canaries have caused.
        host_s = turns * self._loop_lag.mean_delay(begun, now) + visit.waited_s
        by_ids = order.prompt.expected is not None
        return _CheckedAttempt(
            make_attempt(reply, form, by_ids, counts, host_s * 1000.0), reply.status
        )

    async def _post_canary(
        self, order: CheckOrder, target: CanaryTarget, form: Form, seed: int
    ) -> TimedResponse:
        """Send the request.  Raises HttpError."""
        prompt, rank = order.prompt, order.rank
        named_rank = rank.dp_rank if order.must_name_rank else None
        request = make_canary_request(
            form, target.model, prompt.prompt, prompt.max_tokens, named_rank, seed
        )
        return await self._client.post(
            target.endpoint.rstrip("/") + request.path,
            request.content,
            request.headers,
            bytes_max=BODY_BYTES_MAX,
            timeout_s=self._timeout_s,
        )
