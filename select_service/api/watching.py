"""Frames for those who watch: made for all of them together, and none while nobody watches."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from time import monotonic, thread_time
from typing import NamedTuple, TypeVar

import msgspec

INTERVAL_S = 1.0
COST_SHARE_MAX = 0.01
"""Of one core; where a frame takes more CPU than that of an interval, the next one comes later."""

T = TypeVar("T")


class Shown(NamedTuple):
    """JSON of something that belongs to a tenant."""

    tenant_id: str
    text: msgspec.Raw


class Parts(NamedTuple):
    """What can be shown; not everybody sees all of it.

    whole: what belongs to no tenant;  cpu_s: what finding it took
    """

    partitions: list[Shown]
    decisions: list[Shown]
    whole: dict[str, msgspec.Raw]
    cpu_s: float


class Frame(NamedTuple):
    """number: from 1;  due: when the next one may be made"""

    number: int
    due: float
    interval_s: float
    parts: Parts


class Live:
    """Makes frames when somebody waits for one; all who wait get the same."""

    def __init__(self) -> None:
        self._making = asyncio.Lock()
        self._ended = asyncio.Event()
        self._frame = Frame(0, 0.0, INTERVAL_S, Parts([], [], {}, 0.0))

    def end(self) -> None:
        """The service ends: so do the streams."""
        self._ended.set()

    @property
    def is_ending(self) -> bool:
        return self._ended.is_set()

    async def after(self, number: int, made: Callable[[], Awaitable[Parts]]) -> Frame:
        """The newest frame if it is newer than this one and not old; else the next.

        made: what is to be seen at the moment
        """
        async with self._making:
            if self._frame.number <= number or self._frame.due < monotonic():
                await self._sleep(self._frame.due - monotonic())
                self._frame = _framed(await made(), self._frame.number + 1)
            return self._frame

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._ended.wait()


def _framed(parts: Parts, number: int) -> Frame:
    interval_s = max(INTERVAL_S, parts.cpu_s / COST_SHARE_MAX)
    return Frame(number, monotonic() + interval_s, interval_s, parts)


class Meter:
    """CPU of steps that are taken on the event loop among others."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def timed(self, steps: Iterator[T]) -> Iterator[T]:
        while True:
            begun = thread_time()
            try:
                step = next(steps)
            except StopIteration:
                return
            finally:
                self.spent_s += thread_time() - begun
            yield step
