"""CPU budget of an event loop for reading responses of other servers.

All readers share one queue: connections with unparsed bytes, texts to be parsed.  Each takes a
small step and goes to the end of the queue, so no response waits for the end of another.  An
iteration of the loop has time for some steps, and reading gets a limited share of each second: a
server with expensive responses slows down only those responses.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from time import monotonic, thread_time
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

TURN_STEPS_MAX = 8
"""Maximum number of steps per loop iteration, over all readers."""
TURN_S_MAX = 0.0005
"""CPU seconds after which an iteration begins no further step."""
CPU_SHARE = 0.25
"""Fraction of a CPU that reading may use in the long run."""
CREDIT_S_MAX = 0.002
"""CPU seconds that reading may use at once after a pause."""
BUFFER_BYTES = 1 << 18
"""Size of the shared receive buffer."""

Step = Callable[[], bool]
"""Function that reads for at most about 1 ms and returns whether more is to be read.

Never raises.
"""


class ReadingBudget:
    """Reading budget of an event loop."""

    def __init__(
        self,
        cpu: Callable[[], float] = thread_time,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """cpu: function that returns the CPU time of the loop's thread, seconds
        clock: function that returns the time, seconds
        """
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        """Receive buffer; in use only between the two callbacks of one receipt."""
        self._cpu, self._clock = cpu, clock
        self._queue: deque[Step] = deque()
        self._is_scheduled = False
        self._credit_s = CREDIT_S_MAX
        self._credited_at = clock()

    def add_step(self, step: Step) -> None:
        """Schedule a step, which is repeated while it returns True."""
        self._queue.append(step)
        self._schedule_turn()

    async def run_steps(self, steps: Generator[None, None, T]) -> T:
        """Run a generator in steps (each up to a `yield`) and return its result."""
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
                result.set_exception(error.with_traceback(None))  # avoids a cycle with this frame
            return not result.done()

        self.add_step(step)
        return await result

    def _schedule_turn(self) -> None:
        if self._is_scheduled:
            return
        self._is_scheduled = True
        now = self._clock()
        self._credit_s += (now - self._credited_at) * CPU_SHARE
        # A token bucket of CPU time: a long idle period earns no more than a short burst.
        self._credit_s = min(self._credit_s, CREDIT_S_MAX)
        self._credited_at = now
        loop = asyncio.get_running_loop()  # not stored: `_budgets` would keep every loop alive
        if self._credit_s >= 0.0:
            loop.call_soon(self._run_turn)
        else:
            # Overdrawn: the next turn waits until the share of time has paid the debt.
            loop.call_later(-self._credit_s / CPU_SHARE, self._run_turn)

    def _run_turn(self) -> None:
        self._is_scheduled = False
        begun = now = self._cpu()
        for _ in range(TURN_STEPS_MAX):
            step = self._queue.popleft()
            if step():
                self._queue.append(step)
            now = self._cpu()
            if not self._queue or now - begun > TURN_S_MAX:
                break
        self._credit_s -= now - begun
        if self._queue:
            self._schedule_turn()


_budgets: WeakKeyDictionary[asyncio.AbstractEventLoop, ReadingBudget] = WeakKeyDictionary()


def reading_budget() -> ReadingBudget:
    """Return the budget of the running event loop."""
    loop = asyncio.get_running_loop()
    budget = _budgets.get(loop)
    if budget is None:
        budget = _budgets[loop] = ReadingBudget()
    return budget
