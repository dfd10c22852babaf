"""Leases of one client over selectors that are killed and restarted in turn."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from select_service.client import AsyncLease, AsyncSelector, SelectorError
from tests.builders.polling import eventually
from tests.process.access import OPEN, Open
from tests.process.replica_processes import Replica

TTL_S = 6.0
FLAGS = ("--reservation-ttl-secs", str(TTL_S))
DOWN_S = 1.0
PROMPT = list(range(64))


class Outage(NamedTuple):
    """Counts of the leases by outcome.

    served: callers that got a rank
    told: callers that got an error, by its type
    slowest_s: longest time from a caller's request to its answer, seconds
    double: reservation ids of a caller beyond the first
    lost: leases that were reported as lost
    unfreed: reservations left on the selectors when the client is closed
    left: reservations left on the selectors after the time to live
    kills: selectors killed
    """

    served: int
    told: Counter[str]
    slowest_s: float
    double: int
    lost: int
    unfreed: int
    left: int
    kills: int


class Crowd:
    """Callers with one lease each; a bounded number runs at once."""

    def __init__(self, selector: AsyncSelector, lease_s: float) -> None:
        self.selector = selector
        self.lease_s = lease_s
        self.served = 0
        self.told: Counter[str] = Counter()
        self.lost = 0
        self.slowest_s = 0.0
        self.names: dict[str, int] = {}

    async def ask(self, numbers: Sequence[int]) -> None:
        """Run the callers of these numbers in sequence."""
        for number in numbers:
            begin = time.perf_counter()
            try:
                async with self._timed(number, begin) as lease:
                    await self._live(lease)
                self.lost += lease.lost
            except SelectorError as error:
                self.told[type(error).__name__] += 1
                self.slowest_s = max(self.slowest_s, time.perf_counter() - begin)

    @asynccontextmanager
    async def _timed(self, number: int, begin: float) -> AsyncIterator[AsyncLease]:
        async with self.selector.lease(token_ids=[number, *PROMPT]) as lease:
            self.slowest_s = max(self.slowest_s, time.perf_counter() - begin)
            self.names[lease.reservation_id] = number
            yield lease

    async def _live(self, lease: AsyncLease) -> None:
        self.served += 1
        await asyncio.sleep(self.lease_s / 2)
        lease.first_token()
        await asyncio.sleep(self.lease_s / 2)
        lease.tokens(9)


class Killer:
    """Killer of one replica after the other, for ever; each replica restarts a moment later."""

    def __init__(self, replicas: Sequence[Replica], every_s: float) -> None:
        self._replicas = replicas
        self._every_s = every_s
        self.kills = 0

    async def kill(self) -> None:
        for each in itertools.cycle(self._replicas):
            await asyncio.sleep(self._every_s)
            each.kill()
            self.kills += 1
            await asyncio.sleep(DOWN_S)
            await asyncio.to_thread(self._start, each)

    def _start(self, replica: Replica) -> None:
        """Start the replica and register workers and peers, since a started replica has none."""
        replica.start()
        replica.add_workers()
        replica.add_peers(*(other for other in self._replicas if other is not replica))


def page_of(replica: Replica, path: str) -> Any:
    """Return the page, or None while the replica starts."""
    try:
        return replica.get(path)[1]
    except ConnectionRefusedError:
        return None


def list_reservation_ids(replica: Replica) -> list[str]:
    """Return the ids of all reservations of the replica."""
    names: list[str] = []
    after = 0
    while after is not None:
        path = f"/reservations?limit=1000&after={after}"
        page = eventually(lambda path=path: page_of(replica, path))
        names += [row["reservation_id"] for row in page["reservations"]]
        after = page["next"]
    return names


async def outage(
    replicas: Sequence[Replica],
    leases: int,
    at_once: int,
    lease_s: float,
    every_s: float,
    access: Open = OPEN,
) -> Outage:
    """Run the leases while replicas are killed.

    replicas: meshed replicas with `FLAGS`
    every_s: seconds from one kill to the next
    access: access that the replicas were started with
    """
    urls = [each.url for each in replicas]
    killer = Killer(replicas, every_s)
    async with AsyncSelector(
        urls, model_name="m", tenant_id="t", api_key=access.api_key, ssl_context=access.trust
    ) as selector:
        crowd = Crowd(selector, lease_s)
        killing = asyncio.create_task(killer.kill())
        await asyncio.gather(*(crowd.ask(range(i, leases, at_once)) for i in range(at_once)))
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
    for each in replicas:  # the killer may have been about to start a replica
        if each.process.poll() is not None:
            await asyncio.to_thread(each.start)
    unfreed = sum(len(list_reservation_ids(each)) for each in replicas)
    await asyncio.sleep(2 * TTL_S)
    left = sum(len(list_reservation_ids(each)) for each in replicas)
    double = len(crowd.names) - len(set(crowd.names.values()))
    return Outage(
        served=crowd.served,
        told=crowd.told,
        slowest_s=crowd.slowest_s,
        double=double,
        lost=crowd.lost,
        unfreed=unfreed,
        left=left,
        kills=killer.kills,
    )
