"""One request's hold on a rank, from its booking to its end, told to the selector meanwhile.

Nothing here waits: what happens is noted (`progress`), and a task tells it in order.  A lease that
says nothing for a third of its time to live is renewed.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from msgspec import UnsetType

from select_service.bodies.migrations import MovedTo
from select_service.bodies.selection import Overlap
from select_service.client import routes
from select_service.client.booking import Booked
from select_service.client.calling import Call
from select_service.client.errors import Refused, SelectorError
from select_service.client.exchange import Asked
from select_service.client.fallbacks import KnownRank
from select_service.client.link import Link, read
from select_service.client.progress import Outcome, Progress, Verb
from select_service.client.routes import Repeats

RENEWALS_PER_TTL = 3
"""Two may be lost."""
AGAIN_S = 1.0
"""Pause before the first token is told again that no selector has heard of."""

_METHODS = {Verb.FREE: "DELETE"}

Release = Callable[["AsyncLease"], None]


class AsyncLease:
    """Where a request runs.  Ends with its `async with` block.

    worker_id, dp_rank, endpoint: where it runs; after a move as before it, see `moved`
    block_size: tokens of a block of its engine
    reservation_id: its name
    overlap: what the rank had cached of the prompt, in tokens; None: it is not known
    effective_prefill_tokens: what was left to be computed
    selector: URL of the selector that booked it; None: nobody did, see `booked`
    booked: False when no selector answered and a fallback chose the rank
    lost: no selector knows the reservation any more; it was not booked again
    moved: where the service has moved it to; None: nowhere
    cause: why it failed, as the caller said
    """

    def __init__(
        self,
        link: Link,
        chosen: Booked | KnownRank,
        headers: dict[str, str],
        release: Release,
    ) -> None:
        """headers: of all its calls; release: is told once that it has ended"""
        self._link = link
        self._headers = headers
        self._release = release
        self.moved: MovedTo | None = None
        self._has_moved = asyncio.Event()
        self.cause = ""
        self._timer: asyncio.TimerHandle | None = None
        self._is_telling = False
        self._loop = asyncio.get_running_loop()
        self._told_at = self._loop.time()
        self._hold(chosen)
        self.progress = Progress(self.block_size)

    def _hold(self, chosen: Booked | KnownRank) -> None:
        self.selector: str | None = None
        self.reservation_id = ""
        self.overlap: Overlap | None = None
        self.effective_prefill_tokens = 0
        self._doubtful: tuple[str, ...] = ()
        rank = chosen.selection if isinstance(chosen, Booked) else chosen
        if isinstance(chosen, Booked):
            self.selector, self._doubtful = chosen.url, chosen.doubtful
            self.reservation_id = chosen.reservation_id
            self.overlap = chosen.selection.overlap
            self.effective_prefill_tokens = chosen.selection.effective_prefill_tokens
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

    # --- what happens

    def first_token(self) -> None:
        """The engine has computed the prompt."""
        self._do(self.progress.first_token)

    def tokens(self, n: int) -> None:
        """The engine has put out so many more tokens."""
        self._do(self.progress.tokens, n)

    def failed(self, cause: str = "") -> None:
        """The engine did not do what it should: its rank is to blame."""
        self.cause = cause
        self.end("failure")

    def end(self, outcome: Outcome = "ok") -> None:
        """It is over; what comes after the first end does not count."""
        self._do(self.progress.end, outcome)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(outcome_of(kind))

    async def move(self) -> MovedTo:
        """Where the service moves it to, as soon as it does: see `subscribe` of `lease`.

        The move is confirmed by `migrated` of the selector; the next one is waited for after that.
        """
        await self._has_moved.wait()
        self._has_moved.clear()
        assert self.moved is not None
        return self.moved

    def move_to(self, target: MovedTo) -> None:
        """A selector says so, perhaps not for the first time."""
        if target != self.moved:
            self.moved = target
            self._has_moved.set()

    def ask(self) -> None:
        """Renew it now, which says where it is."""
        self._note(self.progress.renew)

    def abandon(self) -> None:
        """The client is closed.  On its event loop only."""
        self._note(self.progress.end, None)

    def _do(self, note: Callable[..., None], *args: Any) -> None:
        self._note(note, *args)

    def _note(self, note: Callable[..., None], *args: Any) -> None:
        """Note what happened, and see that it is told."""
        had_ended = self.progress.has_ended
        note(*args)
        if self.progress.has_ended and not had_ended:
            self._link.background.cancel(self._timer)
            self._release(self)
        self._wake()

    # --- telling it

    def _wake(self) -> None:
        if self._is_telling or not self.booked:
            return
        if not self._link.background.is_full:
            self._is_telling = True
            self._link.background.spawn(self._tell())
        elif self.progress.has_ended:
            self._owe()

    async def _tell(self) -> None:
        """All that is due, in order."""
        try:
            while verbs := self.progress.next():
                async with self._link.background.permits:
                    await asyncio.gather(*map(self._say, verbs))
        finally:
            self._is_telling = False

    async def _say(self, verb: Verb) -> None:
        call = self._call(verb)
        try:
            done = read(routes.RENEW, await self._link.caller.call(call))
        except SelectorError as error:
            await self._untold(verb, error)
        else:
            self._told_at = self._loop.time()
            if not isinstance(done.migrated_to, UnsetType):
                self.move_to(done.migrated_to)
        if verb is Verb.FREE:
            self._link.owe(self._besides(call.url), self.reservation_id)

    async def _untold(self, verb: Verb, error: SelectorError) -> None:
        if isinstance(error, Refused) and error.status < 500:
            if error.status == 404:
                self.progress.lose()
        elif verb is Verb.FREE:
            self._owe()
        elif verb is Verb.PREFILL_COMPLETE:
            await asyncio.sleep(AGAIN_S)
            self.progress.again(verb)

    def _call(self, verb: Verb) -> Call:
        assert self.selector is not None
        target = routes.reservation_target(self.reservation_id, verb.value)
        if verb is Verb.FREE and self.progress.outcome is not None:
            target += f"?outcome={self.progress.outcome}"
        asked = Asked(_METHODS.get(verb, "POST"), target, None, self._headers)
        repeats = Repeats.NEVER if verb is Verb.OUTPUT_BLOCK else Repeats.FREELY
        return Call(asked, self._link.scope, repeats, self._link.until(), home=self.selector)

    def _besides(self, freed_at: str) -> list[str]:
        """Selectors that may hold it still, though another one was told of its end."""
        return [url for url in (*self._doubtful, self.selector) if url and url != freed_at]

    def _owe(self) -> None:
        """Nobody could be told of its end: whoever answers first is, and all the others."""
        self._link.owe(self._link.known.urls, self.reservation_id)

    # --- renewal

    def arm(self) -> None:
        """Time the next renewal anew, as its time to live says."""
        self._link.background.cancel(self._timer)
        assert self.selector is not None
        ttl_s = self._link.ttl_s(self.selector)
        if ttl_s == float("inf") or self.progress.has_ended:
            return
        seconds = ttl_s / RENEWALS_PER_TTL * self._link.chance.uniform(0.8, 1.0)
        quiet_s = self._loop.time() - self._told_at
        if quiet_s >= seconds:
            self.progress.renew()
            self._wake()
            quiet_s = 0.0
        self._timer = self._link.background.later(seconds - quiet_s, self._renew)

    def _renew(self) -> None:
        self._timer = None
        if not self.lost:
            self.arm()


class Lease(AsyncLease):
    """The same for another thread than the client's.  Ends with its `with` block.

    A process that is forked meanwhile has a copy, whose block ends nothing and whose other methods
    raise RuntimeError: the lease stays with the process that began it.
    """

    def __init__(
        self,
        link: Link,
        chosen: Booked | KnownRank,
        headers: dict[str, str],
        release: Release,
    ) -> None:
        """As `AsyncLease`."""
        super().__init__(link, chosen, headers, release)
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if os.getpid() == self._pid:
            self.end(outcome_of(kind))

    def _do(self, note: Callable[..., None], *args: Any) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"the lease {self.reservation_id} is of process {self._pid}, from which this one "
                "was forked: use it there, or begin another one here"
            )
        with suppress(RuntimeError):  # the client was closed, and has ended it
            self._loop.call_soon_threadsafe(self._note, note, *args)


def outcome_of(kind: type[BaseException] | None) -> Outcome:
    """What an exception that ends a lease says of its rank: to be cancelled is nobody's fault."""
    if kind is None:
        return "ok"
    return "failure" if issubclass(kind, Exception) else None
