"""Frames for viewers of the fleet page: computed once for all, and only while viewers exist."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from time import monotonic, thread_time
from typing import NamedTuple, TypeVar

import msgspec

FRAME_INTERVAL_S = 1.0
CPU_SHARE_MAX = 0.01
"""Largest fraction of one core for frames; expensive frames are spaced further apart."""

T = TypeVar("T")


class TenantItem(NamedTuple):
    """JSON of an object that belongs to a tenant."""

    tenant_id: str
    text: msgspec.Raw


class FrameContents(NamedTuple):
    """Contents of a frame, which callers see in part.

    service_contents: objects that belong to no tenant;  cpu_s: CPU time spent on collecting,
    seconds
    """

    partitions: list[TenantItem]
    decisions: list[TenantItem]
    service_contents: dict[str, msgspec.Raw]
    cpu_s: float


class LiveFrame(NamedTuple):
    """Frame shared by all viewers.

    number: sequence number from 1;  due: earliest time of the next frame
    """

    number: int
    due: float
    interval_s: float
    parts: FrameContents


class FrameBroadcaster:
    """Produces frames on demand; concurrent viewers get the same frame."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._ended = asyncio.Event()
        self._frame = LiveFrame(0, 0.0, FRAME_INTERVAL_S, FrameContents([], [], {}, 0.0))

    def end_streams(self) -> None:
        """End all streams, because the service ends."""
        self._ended.set()

    @property
    def is_ending(self) -> bool:
        return self._ended.is_set()

    async def frame_after(
        self, number: int, collect: Callable[[], Awaitable[FrameContents]]
    ) -> LiveFrame:
        """Return a frame newer than `number`: the latest if recent, otherwise the next.

        collect: collects the current contents
        """
        async with self._lock:
            # The first waiting viewer computes the frame; the others wait for the lock and share
            # it.
            if self._frame.number <= number or self._frame.due < monotonic():
                await self._sleep_until_due(self._frame.due - monotonic())
                self._frame = _make_frame(await collect(), self._frame.number + 1)
            return self._frame

    async def _sleep_until_due(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._ended.wait()


def _make_frame(parts: FrameContents, number: int) -> LiveFrame:
    interval_s = max(FRAME_INTERVAL_S, parts.cpu_s / CPU_SHARE_MAX)
    return LiveFrame(number, monotonic() + interval_s, interval_s, parts)


class CpuTimer:
    """CPU time of steps that share the event loop with other tasks."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def time_steps(self, steps: Iterator[T]) -> Iterator[T]:
        """Yield the steps, adding the CPU time of each."""
        while True:
            begun = thread_time()
            try:
                step = next(steps)
            except StopIteration:
                return
            finally:
                self.spent_s += thread_time() - begun
            # Not timed: between steps the loop runs other tasks.
            yield step
