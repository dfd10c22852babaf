"""Calls: attempts at one selector after the other until an answer or the deadline.

The result of an attempt decides about the next. A request that was never sent, or was refused
before any change, may go to any selector. A request with a lost answer may have taken effect,
so another attempt is made only if the route allows repeats.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from select_service.client.errors import Refused, SelectorError, Unavailable
from select_service.client.refusals import NextStep, classify_refusal
from select_service.client.retry_budget import RetryBudget
from select_service.client.route_table import RepeatPolicy
from select_service.client.selector_pool import Scope, SelectorPool
from select_service.client.transport import ClientRequest, ClientResponse, Transport, TransportError

PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 1.0
"""Bounds of the pause after a round in which all selectors failed, in seconds."""
ATTEMPT_S_MIN = 0.02
"""Least time for an attempt, in seconds. A shorter attempt would only leave its result unknown."""
RETRY_AFTER_JITTER_S = 0.25
"""Random time that is added to `retry-after`, in seconds, so that callers do not return together.
"""

_pause = wait_random_exponential(multiplier=PAUSE_S_MIN, max=PAUSE_S_MAX)
_spread = wait_random_exponential(multiplier=RETRY_AFTER_JITTER_S / 2, max=RETRY_AFTER_JITTER_S)


@dataclass(slots=True)
class Call:
    """A request, its allowed selectors and the results of its attempts so far.

    deadline: deadline, in seconds of the event loop's clock
    first_selector: URL of the first selector to use; empty means the selector of the scope
    only_selector: URL of the only selector to use; empty means all
    good_statuses: statuses besides 2xx that are no refusals
    """

    request: ClientRequest
    scope: Scope
    repeats: RepeatPolicy
    deadline: float
    first_selector: str = ""
    only_selector: str = ""
    good_statuses: tuple[int, ...] = ()
    url: str = ""
    """URL of the latest attempt."""
    is_under_way: bool = False
    uncertain: list[str] = field(default_factory=list)
    """URLs of selectors that may have executed the request although no answer came."""
    failed_selectors: set[str] = field(default_factory=set)
    """URLs of selectors that failed in this round."""

    def may_have_taken_effect(self) -> list[str]:
        """Return all selectors that may have executed a call that is given up."""
        return [*self.uncertain, self.url] if self.is_under_way else self.uncertain


class _RetryableFailure(Exception):
    """A failed attempt that may be followed by another.

    error: exception for the caller if there is no further attempt;  then: class of the failure
    """

    def __init__(self, error: SelectorError, then: NextStep) -> None:
        super().__init__(str(error))
        self.error = error
        self.then = then


class RetryingCaller:
    """Makes calls with retries. Belongs to one event loop."""

    def __init__(
        self,
        transport: Transport,
        known: SelectorPool,
        attempt_s: float,
        on_failure: Callable[[str, float], None],
    ) -> None:
        """attempt_s: time limit of an attempt, in seconds

        on_failure: called with the URL of a selector that is excluded, and the seconds of the
        exclusion
        """
        self.transport = transport
        self._pool = known
        self._attempt_s = attempt_s
        self._on_failure = on_failure
        self._budget = RetryBudget()

    async def call(self, call: Call) -> ClientResponse:
        """Return a good answer.  Raises Refused or Unavailable."""
        # First attempts are free; only repeats spend, so the budget bounds the amplification.
        self._budget.add_call()
        try:
            return await self._attempt(call)
        except _RetryableFailure as failed:
            first = failed
        try:
            return await self._retry(call, first)
        except _RetryableFailure as failed:
            raise failed.error from failed.__cause__

    async def _retry(self, call: Call, first: _RetryableFailure) -> ClientResponse:
        failures = [first]

        async def attempt() -> ClientResponse:
            # The first attempt ran before: tenacity costs more than a whole successful call.
            if failures:
                raise failures.pop()
            return await self._attempt(call)

        return await AsyncRetrying(
            retry=retry_if_exception_type(_RetryableFailure),
            wait=lambda state: self._wait_s(call, state),
            stop=lambda state: self._is_over(call, state),
            sleep=asyncio.sleep,
            reraise=True,
        )(attempt)

    def _wait_s(self, call: Call, state: RetryCallState) -> float:
        """Return the pause before the next attempt, in seconds.

        Zero while an untried selector is left, else `retry-after` or an exponential backoff.
        """
        error = _failure_of_state(state).error
        if isinstance(error, Refused) and error.retry_after_s is not None:
            return error.retry_after_s + _spread(state)
        # Only a whole failed round is worth a pause: another selector may be healthy.
        if call.only_selector or call.failed_selectors.issuperset(self._pool.urls):
            # A new round: all selectors may be used again, after a pause.
            call.failed_selectors.clear()
            return _pause(state)
        return 0.0

    def _is_over(self, call: Call, state: RetryCallState) -> bool:
        now = asyncio.get_running_loop().time()
        # The request may have taken effect, and a second effect would be wrong.
        if call.uncertain and call.repeats is RepeatPolicy.NEVER:
            return True
        if _failure_of_state(state).then is NextStep.ELSEWHERE and not call.failed_selectors:
            return True  # every selector has refused
        begin = now + state.upcoming_sleep
        # The budget is asked last, because asking takes a repeat out of it.
        return begin + ATTEMPT_S_MIN >= call.deadline or not self._budget.take_repeat(now)

    async def _attempt(self, call: Call) -> ClientResponse:
        """Make an attempt.

        Raises Refused, or _RetryableFailure if a further attempt is allowed.
        """
        now = asyncio.get_running_loop().time()
        url = call.only_selector or self._pool.next_selector(
            call.scope, now, call.failed_selectors, call.first_selector
        )
        call.url, call.is_under_way = url, True
        try:
            answer = await self._exchange_in_time(
                call, url, min(self._attempt_s, call.deadline - now)
            )
        except TransportError as error:
            self._exclude_selector(call, url, is_doubtful=error.was_sent)
            raise _unanswered_failure(
                call, f"no answer from {url}: {error}", NextStep.LEAVE
            ) from error
        if answer.status < 300 or answer.status in call.good_statuses:
            call.is_under_way = False
            self._pool.readmit(url)
            return answer
        raise self._failure_of_answer(call, url, answer)

    async def _exchange_in_time(self, call: Call, url: str, seconds: float) -> ClientResponse:
        """Send the request within `seconds`.  Raises Broken."""
        asked = call.request
        if call.uncertain and call.repeats is RepeatPolicy.BY_NAME:
            # The mark lets a selector that made the reservation return it instead of 409.
            asked = mark_as_repeat(asked)
        try:
            # Time limits of transports apply to single reads; this limit bounds the whole exchange.
            async with asyncio.timeout(seconds):
                return await self.transport.send(url, asked, seconds)
        except TimeoutError:
            raise TransportError(f"no answer within {seconds:.3g} s", was_sent=True) from None

    def _failure_of_answer(
        self, call: Call, url: str, answer: ClientResponse
    ) -> Refused | _RetryableFailure:
        """Return the exception for a refusal."""
        refused, then = classify_refusal(answer)
        call.is_under_way = False
        if then is NextStep.GIVE_UP:
            return refused
        if then is NextStep.LATER:
            return _RetryableFailure(refused, then)
        if then is NextStep.ELSEWHERE:
            call.failed_selectors.add(url)
            return _RetryableFailure(refused, then)
        self._exclude_selector(call, url, is_doubtful=then is NextStep.UNCERTAIN)
        return _unanswered_failure(call, f"{url} refused the call: {refused}", then)

    def _exclude_selector(self, call: Call, url: str, *, is_doubtful: bool) -> None:
        call.is_under_way = False
        call.failed_selectors.add(url)
        if is_doubtful and url not in call.uncertain:
            call.uncertain.append(url)
        seconds = self._pool.exclude(url, asyncio.get_running_loop().time())
        if seconds is not None:
            self._on_failure(url, seconds)


def mark_as_repeat(asked: ClientRequest) -> ClientRequest:
    """Return the request of the same reservation, marked as a repeat.

    A selector that has the reservation then returns it instead of 409.
    """
    assert asked.content is not None
    return asked._replace(content=asked.content[:-1] + b',"repeat":true}')


def _unanswered_failure(call: Call, text: str, then: NextStep) -> _RetryableFailure:
    return _RetryableFailure(Unavailable(text, may_be_done=bool(call.uncertain)), then)


def _failure_of_state(state: RetryCallState) -> _RetryableFailure:
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, _RetryableFailure)
    return error
