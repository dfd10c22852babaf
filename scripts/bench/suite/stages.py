"""What is measured: running services with engines of their own, and what these announce."""

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scripts.bench import fleet
from scripts.bench.contenders import Contender, Running

QUERYABLE_S_MAX = 120.0
POLL_S = 0.005
MARK_SEED = 50_000_000


@dataclass(slots=True)
class Site:
    """A running contender, its engines, and the marks that nobody has published yet.

    is_pinned: is it on the server's CPU, and nobody else?
    """

    contender: Contender
    running: Running
    engines: fleet.Engines
    workers: int
    is_pinned: bool = True
    marks: Iterator[int] = field(default_factory=lambda: itertools.count(MARK_SEED))

    @property
    def name(self) -> str:
        return self.contender.name

    def wait_until_queryable(self) -> None:
        """Publish one more block from every worker and wait until the service knows it of all:
        then everything before it has been read."""
        mark = fleet.conversation(next(self.marks), 1)
        for worker in range(self.workers):
            self.engines.publish(worker, fleet.stored(mark, 0, 1))
        until = time.monotonic() + QUERYABLE_S_MAX
        hashes = fleet.signed(mark.blocks)
        while sum(self.running.device_blocks(hashes).values()) < self.workers:
            assert time.monotonic() < until, f"{self.name}: events are missing"
            time.sleep(POLL_S)


class Places:
    """The services of one part, all with a fleet of the same size."""

    def __init__(self, workers: int, sites: Sequence[Site]) -> None:
        self.workers, self.sites = workers, sites


@contextlib.contextmanager
def site(contender: Contender, workers: int, pinned: bool = True) -> Iterator[Site]:
    """A started contender with `workers` registered and listened to; its index is empty."""
    engines = fleet.Engines(workers)
    try:
        with Running(contender, pinned) as running:
            running.wait_until_healthy()
            running.register(engines.endpoints, fleet.BLOCK_SIZE)
            engines.wait_for_subscribers()
            yield Site(contender, running, engines, workers, pinned)
    finally:
        engines.close()


@contextlib.contextmanager
def filled(
    contenders: Sequence[Contender],
    known: Sequence[fleet.Conversation],
    workers: int,
    pinned: bool = True,
) -> Iterator[Places]:
    """Every contender, holding all that `fleet.holdings` says."""
    with contextlib.ExitStack() as stack:
        sites = [stack.enter_context(site(each, workers, pinned)) for each in contenders]
        messages = burst_messages(known, workers)
        for each in sites:
            fill(each, messages)
        yield Places(workers, sites)


def burst_messages(known: Sequence[fleet.Conversation], workers: int) -> list[tuple[int, bytes]]:
    return list(fleet.announcements(known, fleet.holdings(workers)))


def fill(place: Site, messages: Sequence[tuple[int, bytes]]) -> tuple[float, float]:
    """From the first event to all of them queryable: wall seconds, CPU seconds of the service."""
    cpu, started = place.running.cpu_s(), time.perf_counter()
    for worker, payload in messages:
        place.engines.publish(worker, payload)
    place.wait_until_queryable()
    return time.perf_counter() - started, place.running.cpu_s() - cpu
