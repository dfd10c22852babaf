"""Test of a thousand requests of programs in Ray while an actor is killed every ten seconds."""

import asyncio
import itertools
import random
import threading
import time
from collections import Counter
from typing import NamedTuple

import pytest
import ray

from select_service.client import AsyncSelector, SelectorError
from select_service.ray import deploy, find
from tests.builders.polling import eventually
from tests.ray.clusters import (
    FLAGS,
    are_joined,
    cluster,
    kill_selector,
    port,
    register,
    reservations,
    worker_ids,
)

pytestmark = [pytest.mark.process, pytest.mark.slow]
SELECTORS, WORKERS, PROGRAMS = 3, 8, 4
LIFECYCLES = 1000
AT_ONCE = 8
KILLED_EVERY_S = 10.0
HELD_S = 1.5, 3.0


class Served(NamedTuple):
    """Request that ran: the selector of the booking, and the seconds that the booking took."""

    reservation_id: str
    selector: str
    seconds: float


@ray.remote(num_cpus=0)
class Program:
    """Program that requests ranks as the README does."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.selector = AsyncSelector(find(), model_name="m")

    async def run(self, n):
        permits = asyncio.Semaphore(AT_ONCE)
        return await asyncio.gather(*(self.one(permits) for _ in range(n)))

    async def one(self, permits):
        """Run a request; return `Served`, or the error that the caller received."""
        async with permits:
            tokens = [self.chance.randrange(1000)] * self.chance.randrange(64, 2000)
            began = time.perf_counter()
            try:
                async with self.selector.lease(token_ids=tokens) as lease:
                    seconds = time.perf_counter() - began
                    lease.tokens(1)
                    await asyncio.sleep(self.chance.uniform(*HELD_S))
                    lease.tokens(40)
                    return Served(lease.reservation_id, lease.selector, seconds)
            except SelectorError as error:
                return repr(error)


def kill_again_and_again(ended, killed):
    for index in itertools.cycle(range(SELECTORS)):
        if ended.wait(KILLED_EVERY_S):
            return
        kill_selector(index)
        killed.append(index)


def test_every_request_is_served_and_nothing_is_left_or_booked_twice():
    with cluster((2, 2, 2)):
        environment = {"DYN_USE_KV_EVENTS": "false", "SELECT_SERVICE_NO_ASSUMED_INDEX": "true"}
        urls = deploy(SELECTORS, port=port(), flags=FLAGS, insecure=True, environment=environment)
        for url, worker_id in itertools.product(urls, range(1, WORKERS + 1)):
            register(url, worker_id)
        eventually(lambda: are_joined(urls))
        programs = [Program.remote(seed) for seed in range(PROGRAMS)]
        ended, killed = threading.Event(), []
        killer = threading.Thread(target=kill_again_and_again, args=(ended, killed))
        killer.start()
        began = time.monotonic()
        share = LIFECYCLES // PROGRAMS
        answers = [a for part in ray.get([p.run.remote(share) for p in programs]) for a in part]
        seconds = time.monotonic() - began
        ended.set()
        killer.join()
        served = [answer for answer in answers if isinstance(answer, Served)]
        waited = sorted(answer.seconds for answer in served)
        print(
            f"{len(served)} of {len(answers)} served in {seconds:.0f} s, {len(killed)} kills; "
            f"booked after {waited[len(waited) // 2] * 1e3:.1f} ms, 99th percentile "
            f"{waited[len(waited) * 99 // 100] * 1e3:.0f} ms, at most {waited[-1] * 1e3:.0f} ms; "
            f"{Counter(a for a in answers if not isinstance(a, Served))}"
        )
        assert len(answers) == LIFECYCLES
        assert len(killed) >= 5
        assert len({answer.reservation_id for answer in served}) == len(served)
        assert len(served) == LIFECYCLES
        eventually(lambda: [reservations(url) for url in urls] == [0] * SELECTORS)
        assert all(worker_ids(url) == set(range(1, WORKERS + 1)) for url in urls)
