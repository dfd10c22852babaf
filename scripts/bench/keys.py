"""What keys cost: CPU of one compiled selection, without keys and with three kinds of them.

    python -m scripts.bench.keys [--rounds 9] [--route select_and_reserve]

In one process and without sockets: bytes in, bytes out, in turns.  Prompts of 256 tokens, 8 ranks.
What is booked is freed between the turns, which is not measured.  A round is the fastest of its
batches, since other work on the machine only ever makes them slower; how long Python takes for a
million turns of an empty loop tells how fast the machine is just then.
"""

import argparse
import asyncio
import math
import statistics
import tempfile
import time
import timeit
from pathlib import Path
from typing import Any, NamedTuple

from select_service.api.application import Application
from select_service.fast.keyed import KeyedLean, Passes
from select_service.fast.protocol import Lean
from select_service.fast.service_answerer import ServiceAnswerer
from select_service.http.server import server_of
from tests.access.keys import bearer, entry, keys_file
from tests.builders import worker_body
from tests.fast.requests import HTTPX, request
from tests.fast.two_services import DATE, Side

REQUESTS = 20_000
BATCH = 500
"""Requests that are measured together; as many reservations are live at most."""
ROUTES = "select", "select_and_reserve"
WARM = 50
KINDS = {
    "no keys": (None, "default"),
    "a key": ("web", "default"),
    "a key of one tenant": ("red", "red"),
    "a key with quotas": ("quota", "default"),
}


class Sink:
    """Counts answers; stands in for the transport."""

    def __init__(self) -> None:
        self.answers = 0

    def write(self, data: bytes) -> None:
        self.answers += 1


class Measured(NamedTuple):
    """asked: BATCH requests;  freed: what ends that which they book"""

    side: Side
    asked: list[bytes]
    freed: list[bytes]


def keys_in(folder: Path) -> Path:
    path: Path = keys_file(
        folder,
        entry("web", "caller"),
        entry("red", "caller", tenants=["red"]),
        entry("quota", "caller", requests_per_s=10**8, reservations=10**6),
        entry("ops", "operator"),
    )
    return path


def measured(
    runner: asyncio.Runner, route: str, keys: Path | None, name: str, tenant: str
) -> Measured:
    flags = () if keys is None else ("--api-keys-file", str(keys))
    side: Any = Side(runner, False, flags, 1)
    service = side.service
    passes = Passes(service.guard, service.selector, service.metrics)
    answerer = ServiceAnswerer(service.selector, service.metrics)
    front = Lean(answerer) if keys is None else KeyedLean(passes)
    front.say(DATE)
    front.watch.on = lambda connections: None  # type: ignore[method-assign]  # no time passes for anybody
    side._config = server_of(Application(service), front).config
    side._config.load()
    runner.run(connected(side))
    operator, caller = (("Authorization", bearer(who)) for who in ("ops", name))
    worker = worker_body(1, data_parallel_size=8) | {"tenant_id": tenant}
    side.say(request("POST /workers", (*HTTPX, operator), worker))
    runner.run(side._reconnect())
    body = {"model_name": "m", "tenant_id": tenant, "token_ids": list(range(256))}
    head = (*HTTPX, caller)
    if route == "select":
        asked, freed = [request("POST /select", head, body)] * BATCH, []
    else:
        names = [f"reservation-{number:06}" for number in range(BATCH)]
        asked = [request(f"POST /{route}", head, body | {"reservation_id": n}) for n in names]
        freed = [request(f"DELETE /reservations/{n}", head) for n in names]
    for each in asked[:WARM] + freed[:WARM]:
        answer = side.say(each)
        assert answer.startswith(b"HTTP/1.1 200"), answer
    return Measured(side, asked, freed)


async def connected(side: Any) -> None:
    side.connect()


async def costs_us(kinds: dict[str, Measured]) -> dict[str, float]:
    """Of the fastest batch of each, in turns."""
    least_s = dict.fromkeys(kinds, math.inf)
    for number in range(REQUESTS // BATCH):
        for kind in kinds if number % 2 else reversed(kinds):
            least_s[kind] = min(least_s[kind], batch_s(kinds[kind]))
    return {kind: took / BATCH * 1e6 for kind, took in least_s.items()}


def batch_s(each: Measured) -> float:
    protocol: Any = each.side.protocol
    sink = Sink()
    protocol._write = sink.write
    begin = time.process_time()
    for asked in each.asked:
        protocol.data_received(asked)
    took = time.process_time() - begin
    for freed in each.freed:
        protocol.data_received(freed)
    assert sink.answers == BATCH + len(each.freed), "some were not answered by compiled code"
    return took


def pace_ms() -> float:
    """Of a million turns of an empty loop, the fastest of some."""
    return min(timeit.repeat("for _ in range(1_000_000): pass", number=1, repeat=5)) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--route", choices=ROUTES, default=ROUTES[0])
    given = parser.parse_args()
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory() as folder:
        keys = keys_in(Path(folder))
        kinds = {
            kind: measured(runner, given.route, keys if name else None, name or "web", tenant)
            for kind, (name, tenant) in KINDS.items()
        }
        rounds = [runner.run(costs_us(kinds)) for _ in range(given.rounds)]
    print(f"a million turns of an empty loop: {pace_ms():.0f} ms")
    for kind in KINDS:
        found = [each[kind] for each in rounds]
        more = [each[kind] - each["no keys"] for each in rounds]
        print(
            f"{kind:22} {statistics.median(found):6.2f} us"
            f"  {statistics.median(more):+6.2f} ({min(more):+.2f} to {max(more):+.2f})"
        )


if __name__ == "__main__":
    main()
