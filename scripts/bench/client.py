"""What a lease costs the program that holds it.

    python scripts/bench/client.py [--leases 2000] [--at-once 16] [--tokens 1024]

One service in a process of its own, and a client in this one.  A lease is four calls: booking,
first token, one output block, end.  Shown are the CPU time of this process for a lease, all of its
threads together, and how long a booking took.  The best of several rounds counts, since other
processes disturb.  For comparison the four calls alone, made by a plain client of httpx.
"""

import argparse
import asyncio
import random
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from select_service.client import AsyncSelector, Selector  # noqa: E402
from select_service.client.options import TransportName  # noqa: E402
from tests.builders import worker_body  # noqa: E402
from tests.process.running import Running  # noqa: E402

ROUNDS = 5
BLOCK_SIZE = 16


class Cost(NamedTuple):
    """cpu_ms: of a lease; booking_ms: median, from the question to the answer"""

    cpu_ms: float
    booking_ms: float


class Load(NamedTuple):
    """leases: in all; at_once: callers; tokens: of a prompt"""

    leases: int
    at_once: int
    tokens: int

    def prompt(self) -> list[int]:
        return [random.randrange(50_000) for _ in range(self.tokens)]


async def measured(
    load: Load,
    one: Callable[[list[int]], Awaitable[float]],
    close: Callable[[], Awaitable[None]],
) -> Cost:
    """one: has a lease, and says how long its booking took, in seconds

    close: returns when everything is told
    """
    prompts = [load.prompt() for _ in range(load.at_once)]
    times: list[float] = []

    async def caller(prompt: list[int]) -> None:
        times.extend([await one(prompt) for _ in range(load.leases // load.at_once)])

    begin = time.process_time()
    await asyncio.gather(*map(caller, prompts))
    await close()
    cpu_s = time.process_time() - begin
    return Cost(cpu_s / len(times) * 1e3, statistics.median(times) * 1e3)


async def of_asyncio(url: str, load: Load, transport: TransportName) -> Cost:
    async with AsyncSelector([url], model_name="m", transport=transport) as selector:

        async def one(prompt: list[int]) -> float:
            begin = time.perf_counter()
            async with selector.lease(token_ids=prompt) as lease:
                took = time.perf_counter() - begin
                lease.first_token()
                lease.tokens(BLOCK_SIZE)
            return took

        return await measured(load, one, selector.close)


def of_threads(url: str, load: Load, transport: TransportName) -> Cost:
    prompts = [load.prompt() for _ in range(load.at_once)]
    times: list[float] = []

    def caller(selector: Selector, prompt: list[int]) -> None:
        for _ in range(load.leases // load.at_once):
            begin = time.perf_counter()
            with selector.lease(token_ids=prompt) as lease:
                times.append(time.perf_counter() - begin)
                lease.first_token()
                lease.tokens(BLOCK_SIZE)

    with Selector([url], model_name="m", transport=transport) as selector:
        begin = time.process_time()
        threads = [threading.Thread(target=caller, args=(selector, each)) for each in prompts]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    cpu_s = time.process_time() - begin
    return Cost(cpu_s / len(times) * 1e3, statistics.median(times) * 1e3)


async def of_plain_httpx(url: str, load: Load) -> Cost:
    async with httpx.AsyncClient(base_url=url) as http:
        names = iter(range(10**9))

        async def one(prompt: list[int]) -> float:
            name, begin = f"plain-{time.time_ns()}-{next(names)}", time.perf_counter()
            wanted = {"model_name": "m", "reservation_id": name, "token_ids": prompt}
            answer = await http.post("/select_and_reserve", json=wanted)
            took = time.perf_counter() - begin
            answer.raise_for_status()
            await http.post(f"/reservations/{name}/prefill_complete")
            await http.post(f"/reservations/{name}/output_block")
            await http.delete(f"/reservations/{name}")
            return took

        return await measured(load, one, http.aclose)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a lease costs the program that holds it.")
    parser.add_argument("--leases", type=int, default=2000, help="in each round")
    parser.add_argument("--at-once", type=int, default=16, help="callers")
    parser.add_argument("--tokens", type=int, default=1024, help="of a prompt")
    given = parser.parse_args()
    load = Load(given.leases, given.at_once, given.tokens)
    with Running() as service:
        url = f"http://127.0.0.1:{service.port}"
        for worker_id in range(1, 9):
            body = worker_body(worker_id, block_size=BLOCK_SIZE)
            assert service.call("POST", "/workers", body).status == 201
        ways: dict[str, Callable[[], Cost]] = {
            "AsyncSelector, httpx": lambda: asyncio.run(of_asyncio(url, load, "httpx")),
            "AsyncSelector, aiohttp": lambda: asyncio.run(of_asyncio(url, load, "aiohttp")),
            "Selector, httpx": lambda: of_threads(url, load, "httpx"),
            "Selector, aiohttp": lambda: of_threads(url, load, "aiohttp"),
            "four calls of plain httpx": lambda: asyncio.run(of_plain_httpx(url, load)),
        }
        for name, way in ways.items():
            best = min(way() for _ in range(ROUNDS))
            print(f"{name:28} {best.cpu_ms:6.2f} ms CPU  {best.booking_ms:6.2f} ms booking")


if __name__ == "__main__":
    main()
