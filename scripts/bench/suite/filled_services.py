"""Measured setups: running services with their engines and announcements."""

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scripts.bench import conversation_data
from scripts.bench.services_under_test import RunningService, ServiceUnderTest

QUERYABLE_S_MAX = 120.0
POLL_S = 0.005
MARK_SEED = 50_000_000


@dataclass(slots=True)
class FilledService:
    """Running contender, its engines, and marks that are not published yet.

    is_pinned: whether the process is alone on the server's CPU
    """

    contender: ServiceUnderTest
    running: RunningService
    engines: conversation_data.EventPublishers
    workers: int
    is_pinned: bool = True
    marks: Iterator[int] = field(default_factory=lambda: itertools.count(MARK_SEED))

    @property
    def name(self) -> str:
        return self.contender.name

    def wait_until_queryable(self) -> None:
        """Publish one more block from every worker and wait until the service finds all of them.

        Then every earlier event has been read.
        """
        # A new block each time; an old mark would be found at once.
        mark = conversation_data.make_conversation(next(self.marks), 1)
        for worker in range(self.workers):
            self.engines.publish(worker, conversation_data.stored_batch(mark, 0, 1))
        until = time.monotonic() + QUERYABLE_S_MAX
        hashes = conversation_data.as_signed(mark.blocks)
        while sum(self.running.device_blocks(hashes).values()) < self.workers:
            assert time.monotonic() < until, f"{self.name}: events are missing"
            time.sleep(POLL_S)


class PartServices:
    """Services of a part, all with a fleet of the same size."""

    def __init__(self, workers: int, sites: Sequence[FilledService]) -> None:
        self.workers, self.sites = workers, sites


@contextlib.contextmanager
def started_service(
    contender: ServiceUnderTest, workers: int, pinned: bool = True
) -> Iterator[FilledService]:
    """Start a contender with `workers` registered and subscribed; its index is empty."""
    engines = conversation_data.EventPublishers(workers)
    try:
        with RunningService(contender, pinned) as running:
            running.wait_until_healthy()
            running.register_workers(engines.endpoints, conversation_data.BLOCK_SIZE)
            engines.wait_for_subscribers()
            yield FilledService(contender, running, engines, workers, pinned)
    finally:
        engines.close()


@contextlib.contextmanager
def filled_services(
    contenders: Sequence[ServiceUnderTest],
    known: Sequence[conversation_data.Conversation],
    workers: int,
    pinned: bool = True,
) -> Iterator[PartServices]:
    """Yield every contender, filled with `make_holdings`."""
    with contextlib.ExitStack() as stack:
        sites = [stack.enter_context(started_service(each, workers, pinned)) for each in contenders]
        messages = burst_messages(known, workers)
        for each in sites:
            fill_index(each, messages)
        yield PartServices(workers, sites)


def burst_messages(
    known: Sequence[conversation_data.Conversation], workers: int
) -> list[tuple[int, bytes]]:
    return list(
        conversation_data.make_announcements(known, conversation_data.make_holdings(workers))
    )


def fill_index(place: FilledService, messages: Sequence[tuple[int, bytes]]) -> tuple[float, float]:
    """Fill an index; returns wall and CPU seconds from the first event to the last query."""
    cpu, started = place.running.cpu_s(), time.perf_counter()
    for worker, payload in messages:
        place.engines.publish(worker, payload)
    place.wait_until_queryable()
    return time.perf_counter() - started, place.running.cpu_s() - cpu
