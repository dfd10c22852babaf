"""The time of an event loop that may go into reading what others answer.

Whatever reads stands in one line: connections whose bytes are to be parsed, texts that are to be
taken apart.  Each takes a small step and goes behind the others, so no answer waits for the end of
another one.  A turn of the loop has room for some steps, and a second for a share of itself: a
server that makes its answers costly makes them slow, and nothing else.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from time import monotonic, thread_time
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

TURN_STEPS_MAX = 8
"""Steps of all readers together, in one turn of the loop."""
TURN_S_MAX = 0.0005
"""Seconds of CPU after which a turn begins no further step."""
SHARE = 0.25
"""Part of a CPU that reading may take for long."""
CREDIT_S_MAX = 0.002
"""Seconds of CPU that reading may take at once after a rest."""
BUFFER_BYTES = 1 << 18
"""Size of the memory that connections receive into."""

Step = Callable[[], bool]
"""Reads a little, at most about a millisecond; returns whether there is more to read.  Raises
nothing."""


class ReadingBudget:
    """Belongs to one event loop."""

    def __init__(
        self,
        cpu: Callable[[], float] = thread_time,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """cpu: CPU time of the thread of the loop, in seconds.  clock: in seconds"""
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        """Holds something between the two calls of one receipt only."""
        self._cpu, self._clock = cpu, clock
        self._line: deque[Step] = deque()
        self._is_scheduled = False
        self._credit_s = CREDIT_S_MAX
        self._credited_at = clock()

    def add(self, step: Step) -> None:
        """Take the step in a later turn, again and again while it returns True."""
        self._line.append(step)
        self._schedule()

    async def result_of(self, steps: Generator[None, None, T]) -> T:
        """Return what the generator returns; each part up to a `yield` is a step."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def step() -> bool:
            if result.done():  # cancelled
                steps.close()
                return False
            try:
                next(steps)
            except StopIteration as end:
                result.set_result(end.value)
            except Exception as error:
                result.set_exception(error.with_traceback(None))  # it knows this frame
            return not result.done()

        self.add(step)
        return await result

    def _schedule(self) -> None:
        if self._is_scheduled:
            return
        self._is_scheduled = True
        now = self._clock()
        self._credit_s += (now - self._credited_at) * SHARE
        self._credit_s = min(self._credit_s, CREDIT_S_MAX)
        self._credited_at = now
        loop = asyncio.get_running_loop()  # which is not kept: `_budgets` would keep all loops
        if self._credit_s >= 0.0:
            loop.call_soon(self._turn)
        else:
            loop.call_later(-self._credit_s / SHARE, self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        begun = now = self._cpu()
        for _ in range(TURN_STEPS_MAX):
            step = self._line.popleft()
            if step():
                self._line.append(step)
            now = self._cpu()
            if not self._line or now - begun > TURN_S_MAX:
                break
        self._credit_s -= now - begun
        if self._line:
            self._schedule()


_budgets: WeakKeyDictionary[asyncio.AbstractEventLoop, ReadingBudget] = WeakKeyDictionary()


def reading_budget() -> ReadingBudget:
    """Return that of the running event loop."""
    loop = asyncio.get_running_loop()
    budget = _budgets.get(loop)
    if budget is None:
        budget = _budgets[loop] = ReadingBudget()
    return budget
