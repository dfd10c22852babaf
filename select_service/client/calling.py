"""One call: from attempt to attempt, until a selector has answered or the time is over.

What may be repeated, and where, follows from what is known of the attempt before: a request that
was never sent, or was refused before anything was done, may go anywhere; one whose answer was lost
may have been done, so it goes on only if the route says that a repeat does no harm.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from select_service.client.errors import Refused, SelectorError, Unavailable
from select_service.client.exchange import Answer, Asked, Broken, Transport
from select_service.client.known_selectors import KnownSelectors, Scope
from select_service.client.refusals import Next, refusal_of
from select_service.client.retry_budget import RetryBudget
from select_service.client.routes import Repeats

PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 1.0
"""Windows of the pauses after a round in which all selectors have failed."""
ATTEMPT_S_MIN = 0.02
"""With less time left no attempt is begun: it would only leave a doubt."""
SPREAD_S = 0.25
"""Window that is added to what a selector asks to wait, so that not all come back together."""

_pause = wait_random_exponential(multiplier=PAUSE_S_MIN, max=PAUSE_S_MAX)
_spread = wait_random_exponential(multiplier=SPREAD_S / 2, max=SPREAD_S)


@dataclass(slots=True)
class Call:
    """What is asked of whom, and what became of its attempts so far.

    until: when it is over, in seconds of the event loop's clock
    home: the selector that is asked first; empty: the one of the scope
    only: the one selector that may be asked; empty: all
    good: statuses that are no refusals, besides 2xx
    """

    asked: Asked
    scope: Scope
    repeats: Repeats
    until: float
    home: str = ""
    only: str = ""
    good: tuple[int, ...] = ()
    url: str = ""
    """Who was asked last."""
    is_under_way: bool = False
    doubtful: list[str] = field(default_factory=list)
    """Selectors that may have done it, though no answer came."""
    passed: set[str] = field(default_factory=set)
    """Who has failed in this round."""

    def may_have_done(self) -> list[str]:
        """All selectors that may have done it, now that the call is given up."""
        return [*self.doubtful, self.url] if self.is_under_way else self.doubtful


class _Again(Exception):
    """This attempt failed and there may be another.

    error: what is raised when there is none; then: what it means
    """

    def __init__(self, error: SelectorError, then: Next) -> None:
        super().__init__(str(error))
        self.error = error
        self.then = then


class Caller:
    """Makes calls.  Belongs to one event loop."""

    def __init__(
        self,
        transport: Transport,
        known: KnownSelectors,
        attempt_s: float,
        on_failure: Callable[[str, float], None],
    ) -> None:
        """attempt_s: the longest time for one attempt, in seconds

        on_failure: is told of a selector that is left alone, and for how many seconds
        """
        self.transport = transport
        self._known = known
        self._attempt_s = attempt_s
        self._on_failure = on_failure
        self._budget = RetryBudget()

    async def call(self, call: Call) -> Answer:
        """A good answer.  Raises Refused, Unavailable."""
        self._budget.earn()
        try:
            return await self._attempt(call)
        except _Again as failed:
            first = failed
        try:
            return await self._repeated(call, first)
        except _Again as failed:
            raise failed.error from failed.__cause__

    async def _repeated(self, call: Call, first: _Again) -> Answer:
        failures = [first]

        async def attempt() -> Answer:
            if failures:
                raise failures.pop()
            return await self._attempt(call)

        return await AsyncRetrying(
            retry=retry_if_exception_type(_Again),
            wait=lambda state: self._wait_s(call, state),
            stop=lambda state: self._is_over(call, state),
            sleep=asyncio.sleep,
            reraise=True,
        )(attempt)

    def _wait_s(self, call: Call, state: RetryCallState) -> float:
        """At once where another selector is left to be asked, else as was asked for, or longer
        each time."""
        error = _failure(state).error
        if isinstance(error, Refused) and error.retry_after_s is not None:
            return error.retry_after_s + _spread(state)
        if call.only or call.passed.issuperset(self._known.urls):
            call.passed.clear()
            return _pause(state)
        return 0.0

    def _is_over(self, call: Call, state: RetryCallState) -> bool:
        now = asyncio.get_running_loop().time()
        if call.doubtful and call.repeats is Repeats.NEVER:
            return True
        if _failure(state).then is Next.ELSEWHERE and not call.passed:
            return True  # all have said no
        begin = now + state.upcoming_sleep
        return begin + ATTEMPT_S_MIN >= call.until or not self._budget.spend(now)

    async def _attempt(self, call: Call) -> Answer:
        """Raises Refused, and _Again when it may be tried again."""
        now = asyncio.get_running_loop().time()
        url = call.only or self._known.next(call.scope, now, call.passed, call.home)
        call.url, call.is_under_way = url, True
        try:
            answer = await self._exchange(call, url, min(self._attempt_s, call.until - now))
        except Broken as error:
            self._left(call, url, is_doubtful=error.was_sent)
            raise _unanswered(call, f"no answer of {url}: {error}", Next.LEAVE) from error
        if answer.status < 300 or answer.status in call.good:
            call.is_under_way = False
            self._known.answered(url)
            return answer
        raise self._judged(call, url, answer)

    async def _exchange(self, call: Call, url: str, seconds: float) -> Answer:
        """Raises Broken."""
        asked = call.asked
        if call.doubtful and call.repeats is Repeats.BY_NAME:
            asked = as_repeat(asked)
        try:
            async with asyncio.timeout(seconds):
                return await self.transport.send(url, asked, seconds)
        except TimeoutError:
            raise Broken(f"not within {seconds:.3g} s", was_sent=True) from None

    def _judged(self, call: Call, url: str, answer: Answer) -> Refused | _Again:
        """What a refusal is raised as."""
        refused, then = refusal_of(answer)
        call.is_under_way = False
        if then is Next.GIVE_UP:
            return refused
        if then is Next.LATER:
            return _Again(refused, then)
        if then is Next.ELSEWHERE:
            call.passed.add(url)
            return _Again(refused, then)
        self._left(call, url, is_doubtful=then is Next.UNCERTAIN)
        return _unanswered(call, f"{url} answered {refused}", then)

    def _left(self, call: Call, url: str, *, is_doubtful: bool) -> None:
        call.is_under_way = False
        call.passed.add(url)
        if is_doubtful and url not in call.doubtful:
            call.doubtful.append(url)
        seconds = self._known.failed(url, asyncio.get_running_loop().time())
        if seconds is not None:
            self._on_failure(url, seconds)


def as_repeat(asked: Asked) -> Asked:
    """The same booking once more: who has it already answers with it."""
    assert asked.content is not None
    return asked._replace(content=asked.content[:-1] + b',"repeat":true}')


def _unanswered(call: Call, text: str, then: Next) -> _Again:
    return _Again(Unavailable(text, may_be_done=bool(call.doubtful)), then)


def _failure(state: RetryCallState) -> _Again:
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, _Again)
    return error
