"""Lease: the reservation of a request, from the selection to the end.

No method waits. `progress` collects events, and a task sends the events to the selector in order.
A lease without a call for a third of the time to live is renewed.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from msgspec import UnsetType

from select_service.client.client_core import ClientCore, decode_answer
from select_service.client.errors import Refused, SelectorError
from select_service.client.fallbacks import KnownRank
from select_service.client.lease_progress import LeaseProgress, Outcome, ReservationVerb
from select_service.client.named_reservations import MadeReservation
from select_service.client.retrying_caller import Call
from select_service.client.route_table import RepeatPolicy, SelectorRoutes, reservation_target
from select_service.client.transport import ClientRequest
from select_service.schemas.migrations import MovedTo
from select_service.schemas.selection import Overlap
from select_service.schemas.shared_caches import FetchSource

RENEWALS_PER_TTL = 3
"""Renewals per time to live, of which two may be lost."""
REPORT_RETRY_S = 1.0
"""Pause before the first token is reported again after a failure, in seconds."""

_METHODS = {ReservationVerb.FREE: "DELETE"}
_RETRIED = (ReservationVerb.PREFILL_COMPLETE, ReservationVerb.FIRST_TOKEN)

Release = Callable[["AsyncLease"], None]


class AsyncLease:
    """Reserved rank of a request. The `async with` block ends the lease.

    worker_id, dp_rank, endpoint: reserved rank; a move does not change them, see `moved`
    block_size: block size of the engine, in tokens
    reservation_id: name of the reservation
    overlap: cached part of the prompt on the rank, in tokens; None means unknown
    effective_prefill_tokens: prompt tokens that the rank has to compute
    kv_source: rank from which the engine can fetch a part of the prompt; None means no such rank
    selector: URL of the selector with the reservation; None without a reservation, see `booked`
    booked: False if no selector answered and a fallback chose the rank
    lost: whether no selector has the reservation any more; a lost lease is not reserved again
    moved: rank to which the service moved the reservation; None means no move
    cause: cause of the failure, as given by the caller
    """

    def __init__(
        self,
        link: ClientCore,
        chosen: MadeReservation | KnownRank,
        headers: dict[str, str],
        release: Release,
    ) -> None:
        """headers: headers of all calls;  release: called once after the end"""
        self._core = link
        self._headers = headers
        self._release = release
        self.moved: MovedTo | None = None
        self._has_moved = asyncio.Event()
        self.cause = ""
        self._timer: asyncio.TimerHandle | None = None
        self._is_sending = False
        self._loop = asyncio.get_running_loop()
        self._last_call_at = self._loop.time()
        self._store_choice(chosen)
        self.first_rank = self.worker_id, self.dp_rank
        """Worker and rank of the reservation at the beginning."""
        self.progress = self._make_progress()

    def _make_progress(self) -> LeaseProgress:
        return LeaseProgress(self.block_size)

    def _store_choice(self, chosen: MadeReservation | KnownRank) -> None:
        self.selector: str | None = None
        self.reservation_id = ""
        self.overlap: Overlap | None = None
        self.effective_prefill_tokens = 0
        self.kv_source: FetchSource | None = None
        self._uncertain: tuple[str, ...] = ()
        rank = chosen.selection if isinstance(chosen, MadeReservation) else chosen
        if isinstance(chosen, MadeReservation):
            self.selector, self._uncertain = chosen.url, chosen.uncertain
            self.reservation_id = chosen.reservation_id
            self.overlap = chosen.selection.overlap
            self.effective_prefill_tokens = chosen.selection.effective_prefill_tokens
            self.kv_source = chosen.selection.kv_source or None
        self.worker_id = rank.worker_id
        self.dp_rank = rank.dp_rank
        self.endpoint = rank.endpoint
        self.block_size = rank.block_size

    @property
    def booked(self) -> bool:
        return self.selector is not None

    @property
    def lost(self) -> bool:
        return self.progress.is_lost

    # Events of the request

    def first_token(self) -> None:
        """Report that the engine has computed the prompt."""
        self._record(self.progress.record_first_token)

    def tokens(self, n: int) -> None:
        """Report `n` more output tokens."""
        self._record(self.progress.record_tokens, n)

    def failed(self, cause: str = "") -> None:
        """End the lease with a failure of the rank."""
        self.cause = cause
        self.end("failure")

    def end(self, outcome: Outcome = "ok") -> None:
        """End the lease; only the first end counts."""
        self._record(self.progress.record_end, outcome)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(outcome_of_exception(kind))

    async def move(self) -> MovedTo:
        """Wait for the next move and return the target rank; needs `subscribe` of `lease`.

        The caller confirms a move with `migrated` of the selector, and then waits for the next.
        """
        await self._has_moved.wait()
        # Cleared before the return: a move that arrives during the caller's work wakes the next
        # wait.
        self._has_moved.clear()
        assert self.moved is not None
        return self.moved

    def note_move(self, target: MovedTo) -> None:
        """Store the target of a move; a repeated notification has no effect."""
        # Answers to renewals repeat the latest move; only a new move may wake the caller.
        if target != self.moved:
            self.moved = target
            self._has_moved.set()

    def renew_now(self) -> None:
        """Renew the reservation now; the answer names the current rank."""
        self._record_on_loop(self.progress.request_renewal)

    def abandon(self) -> None:
        """End the lease without an outcome because the client is closed. Event loop only."""
        self._record_on_loop(self.progress.record_end, None)

    def _record(self, note: Callable[..., None], *args: Any) -> None:
        self._record_on_loop(note, *args)

    def _record_on_loop(self, note: Callable[..., None], *args: Any) -> None:
        """Record an event and start sending."""
        had_ended = self.progress.has_ended
        note(*args)
        if self.progress.has_ended and not had_ended:
            self._core.background.cancel_timer(self._timer)
            self._release(self)
        self._start_sending()

    # Calls to the selector

    def _start_sending(self) -> None:
        if self._is_sending or not self.booked:
            return
        if not self._core.background.is_full:
            self._is_sending = True
            self._core.background.spawn(self._send_pending())
        elif self.progress.has_ended:
            self._free_everywhere()

    async def _send_pending(self) -> None:
        """Send all pending events in order."""
        try:
            # One task per lease sends in order; new events are picked up by the running task.
            while verbs := self.progress.take_verbs():
                async with self._core.background.permits:
                    await asyncio.gather(*map(self._send_verb, verbs))
        finally:
            self._is_sending = False

    async def _send_verb(self, verb: ReservationVerb) -> None:
        call = self._make_call(verb)
        try:
            done = decode_answer(SelectorRoutes.renew, await self._core.caller.call(call))
        except SelectorError as error:
            await self._handle_failure(verb, error)
        else:
            self._last_call_at = self._loop.time()
            if not isinstance(done.migrated_to, UnsetType):
                self.note_move(done.migrated_to)
        if verb is ReservationVerb.FREE:
            self._core.free_when_reachable(self._other_holders(call.url), self.reservation_id)

    async def _handle_failure(self, verb: ReservationVerb, error: SelectorError) -> None:
        if isinstance(error, Refused) and error.status < 500:
            # The reservation expired or a selector lost it: further calls would only get 404.
            if error.status == 404:
                self.progress.mark_lost()
        elif verb is ReservationVerb.FREE:
            self._free_everywhere()
        elif verb in _RETRIED:
            await asyncio.sleep(REPORT_RETRY_S)
            self.progress.schedule_again(verb)

    def _make_call(self, verb: ReservationVerb) -> Call:
        assert self.selector is not None
        target = reservation_target(self.reservation_id, verb.value)
        if verb is ReservationVerb.FREE and self.progress.outcome is not None:
            target += f"?outcome={self.progress.outcome}"
        asked = ClientRequest(_METHODS.get(verb, "POST"), target, None, self._headers)
        # A repeated output block would be counted twice; the other verbs are idempotent.
        repeats = (
            RepeatPolicy.NEVER if verb is ReservationVerb.OUTPUT_BLOCK else RepeatPolicy.FREELY
        )
        return Call(
            asked, self._core.scope, repeats, self._core.deadline_in(), first_selector=self.selector
        )

    def _other_holders(self, freed_at: str) -> list[str]:
        """Return the other selectors that may still hold the reservation."""
        return [url for url in (*self._uncertain, self.selector) if url and url != freed_at]

    def _free_everywhere(self) -> None:
        """Free the reservation at all selectors, each as soon as the selector answers."""
        self._core.free_when_reachable(self._core.pool.urls, self.reservation_id)

    # Renewals

    def restart_renewal_timer(self) -> None:
        """Restart the renewal timer from the time to live of the selector."""
        self._core.background.cancel_timer(self._timer)
        assert self.selector is not None
        ttl_s = self._core.ttl_s(self.selector)
        if ttl_s == float("inf") or self.progress.has_ended:
            return
        seconds = ttl_s / RENEWALS_PER_TTL * self._core.rng.uniform(0.8, 1.0)
        # Every call renews, so the timer runs from the latest call.
        quiet_s = self._loop.time() - self._last_call_at
        if quiet_s >= seconds:
            self.progress.request_renewal()
            self._start_sending()
            quiet_s = 0.0
        self._timer = self._core.background.call_later(seconds - quiet_s, self._renew)

    def _renew(self) -> None:
        self._timer = None
        if not self.lost:
            self.restart_renewal_timer()


class Lease(AsyncLease):
    """`AsyncLease` for threads other than the client's. The `with` block ends the lease.

    A forked process gets a copy: the end of the block has no effect there, and other methods raise
    RuntimeError: the lease belongs to the process that began the lease.
    """

    def __init__(
        self,
        link: ClientCore,
        chosen: MadeReservation | KnownRank,
        headers: dict[str, str],
        release: Release,
    ) -> None:
        """See `AsyncLease`."""
        super().__init__(link, chosen, headers, release)
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A forked copy must not end the reservation of the parent process.
        if os.getpid() == self._pid:
            self.end(outcome_of_exception(kind))

    def _record(self, note: Callable[..., None], *args: Any) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"lease {self.reservation_id} belongs to process {self._pid}, and this process "
                "is a forked child: use the lease there, or begin another one here"
            )
        with suppress(RuntimeError):  # the client is closed and has ended the lease
            self._loop.call_soon_threadsafe(self._record_on_loop, note, *args)


def outcome_of_exception(kind: type[BaseException] | None) -> Outcome:
    """Return the outcome for the exception of a block; a cancellation blames no rank."""
    if kind is None:
        return "ok"
    return "failure" if issubclass(kind, Exception) else None
