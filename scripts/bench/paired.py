#!/usr/bin/env python3
"""Measures two services next to each other, in turns, and prints Markdown tables.

    python scripts/bench/paired.py --reference-python /path/to/env/bin/python [part ...]
    python scripts/bench/paired.py --before COMMIT [part ...]

The other one is the reference, `ai-dynamo-runtime==1.3.1` in an environment of its own, or this
service as it was at a commit; with neither only ours is measured.  Parts, all by default:

    select    CPU of the server per POST /select, by prompt length and number of workers
    life      CPU of the server per request that is selected, booked, prefilled and freed
    burst     64-block store events into a cold index: wire to queryable
    events    CPU of the server per event message at a fixed rate
    mixed     latency of POST /select while events stream in
    visible   from sending an event to the first answer that shows it, under 64 selecting clients
    start     from starting the process to the first answered POST /select; resident memory

The server is kept on one CPU, everything that asks or publishes on another.  Every cell is measured
`--repeats` times, alternating between the two; tables give medians.  Wall times on a machine with
neighbours move by a factor of two, CPU times by some ten percent: compare within a table only.
"""

import argparse
import contextlib
import itertools
import json
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fleet
from contenders import Contender, Running, ours, pin_load, reference, unpacked
from http_load import Wrk, hammer

from tests.process.running import request

CONNECTIONS = 64
SELECT_S = 3.0
PROMPT_BLOCKS = (8, 64, 512, 4096)
EVENT_RATES = ((64, 2000.0), (8, 5000.0), (1, 10_000.0))
"""(blocks per event, messages per second)"""
EVENTS_S = 3.0
MIXED = ((64, 2000.0), (1, 20_000.0))
MIXED_CONNECTIONS = 4
VISIBLE_S = 15.0
VISIBLE_BLOCKS = 8
VISIBLE_PAUSE_S = 0.01
QUERYABLE_S_MAX = 60.0
POLL_S = 0.01
HOT_BRANCHES = 256
HOT_SEED = 5000
LAST_SEED = 4999
LIFE_BLOCKS = (8, 512)
LIVES = 2000
BATCH = 20
"""Requests in flight of the part life."""


class Table:
    """Values by row, column and contender; a cell is the median of what was added."""

    def __init__(self, title: str, row_name: str, columns: Sequence[str]) -> None:
        self.title, self.row_name, self.columns = title, row_name, columns
        self.values: dict[str, dict[str, dict[str, list[float]]]] = {}

    def add(self, row: str, contender: str, *values: float) -> None:
        cells = self.values.setdefault(row, {}).setdefault(contender, {})
        for column, value in zip(self.columns, values, strict=True):
            cells.setdefault(column, []).append(value)

    def markdown(self, contenders: Sequence[Contender]) -> str:
        names = [contender.name for contender in contenders]
        heads = [self.row_name]
        for column in self.columns:
            heads += [f"{column}: {name}" for name in names]
            heads += ["ratio"] if len(names) == 2 else []
        lines = [f"### {self.title}", "", "| " + " | ".join(heads) + " |"]
        lines.append("|" + "---|" * len(heads))
        for row, found in self.values.items():
            cells = [row]
            for column in self.columns:
                medians = [statistics.median(found[name][column]) for name in names]
                cells += [number(value) for value in medians]
                cells += [f"{medians[0] / medians[1]:.2f}"] if len(names) == 2 else []
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join([*lines, ""])


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


class Run(NamedTuple):
    """What every part gets."""

    contenders: list[Contender]
    repeats: int
    known: list[fleet.Conversation]
    tables: list[Table]

    def table(self, title: str, row_name: str, *columns: str) -> Table:
        self.tables.append(Table(title, row_name, columns))
        return self.tables[-1]


class Site(NamedTuple):
    """A running contender with its own engines."""

    running: Running
    engines: fleet.Engines


@contextlib.contextmanager
def site(contender: Contender, workers: int) -> Iterator[Site]:
    """A started contender with `workers` registered and listened to; its index is empty."""
    engines = fleet.Engines(workers)
    with Running(contender) as running:
        running.wait_until_healthy()
        running.register(engines.endpoints, fleet.BLOCK_SIZE)
        engines.wait_for_subscribers()
        yield Site(running, engines)
    engines.close()


def fill(run: Run, place: Site, workers: int) -> tuple[int, float, float]:
    """Announce everything that is held; returns (blocks, wall seconds, CPU seconds).

    The last event of every worker is the same block, so one cheap question tells whether all
    before it is queryable.
    """
    held = fleet.holdings(workers)
    messages = list(fleet.announcements(run.known, held))
    last = fleet.conversation(LAST_SEED, 1)
    messages += [(worker, fleet.stored(last, 0, 1)) for worker in range(workers)]
    cpu, started = place.running.cpu_s(), time.perf_counter()
    for worker, payload in messages:
        place.engines.publish(worker, payload)
    until = time.monotonic() + QUERYABLE_S_MAX
    while sum(place.running.device_blocks(fleet.signed(last.blocks)).values()) < workers:
        assert time.monotonic() < until, f"{place.running.name}: events are missing"
        time.sleep(POLL_S)
    wall = time.perf_counter() - started
    return sum(h.depth_blocks for h in held), wall, place.running.cpu_s() - cpu


@contextlib.contextmanager
def filled_sites(run: Run, workers: int) -> Iterator[list[Site]]:
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(site(c, workers)) for c in run.contenders]
        for place in places:
            fill(run, place, workers)
        yield places


def part_select(run: Run) -> None:
    table = run.table(
        f"POST /select, {CONNECTIONS} connections",
        "workers, hashes",
        "CPU us/request",
        "requests/s",
        "p50 us",
        "p99 us",
    )
    for workers in (8, 256):
        with filled_sites(run, workers) as places:
            for n_blocks in PROMPT_BLOCKS:
                bodies = fleet.select_bodies(run.known, n_blocks)
                for _ in range(run.repeats):
                    for place in places:
                        row = f"{workers}, {n_blocks}"
                        table.add(row, place.running.name, *select_once(place, bodies))


def select_once(place: Site, bodies: list[bytes]) -> tuple[float, float, float, float]:
    cpu, started = place.running.cpu_s(), time.perf_counter()
    result = hammer(place.running.port, bodies, CONNECTIONS, SELECT_S)
    cpu, wall = place.running.cpu_s() - cpu, time.perf_counter() - started
    assert not result.errors, f"{place.running.name}: {result}"
    return 1e6 * cpu / result.requests, result.requests / wall, result.p50_us, result.p99_us


def part_life(run: Run) -> None:
    table = run.table(
        "select_and_reserve, prefill_complete and DELETE of one request",
        "workers, hashes",
        "CPU us/life",
    )
    for workers in (8, 256):
        with filled_sites(run, workers) as places:
            for n_blocks in LIFE_BLOCKS:
                bodies = fleet.select_bodies(run.known, n_blocks)
                for repeat in range(run.repeats):
                    for place in places:
                        cpu_us = lives_once(place, bodies, f"{n_blocks}-{repeat}")
                        table.add(f"{workers}, {n_blocks}", place.running.name, cpu_us)


def lives_once(place: Site, bodies: Sequence[bytes], name: str) -> float:
    """LIVES requests on one connection, each step of BATCH of them at once."""
    cpu = place.running.cpu_s()
    with socket.create_connection(("127.0.0.1", place.running.port)) as connection:
        for first in range(0, LIVES, BATCH):
            names = [f"{name}-{first + n}" for n in range(BATCH)]
            known = zip(names, itertools.cycle(bodies), strict=False)
            booked = [body[:-1] + b',"reservation_id":"%b"}' % n.encode() for n, body in known]
            pipelined(connection, [("POST", "/select_and_reserve", body) for body in booked])
            paths = [f"/reservations/{each}" for each in names]
            pipelined(connection, [("POST", f"{path}/prefill_complete", b"{}") for path in paths])
            pipelined(connection, [("DELETE", path, None) for path in paths])
    return 1e6 * (place.running.cpu_s() - cpu) / LIVES


def pipelined(connection: socket.socket, requests: Sequence[tuple[str, str, bytes | None]]) -> None:
    """Send all, and read as many good answers."""
    connection.sendall(b"".join(request(*each) for each in requests))
    answers = b""
    while answers.count(b"HTTP/1.1 2") < len(requests):
        answers += (received := connection.recv(1 << 16))
        assert received, "the service has closed the connection"
        assert b"HTTP/1.1 4" not in answers, answers[-500:]


def part_burst(run: Run) -> None:
    table = run.table(
        "Burst of 64-block store events into an empty index",
        "workers",
        "M blocks/s",
        "CPU ns/block",
    )
    for workers in (8, 256):
        for _ in range(run.repeats):
            for contender in run.contenders:
                with site(contender, workers) as place:
                    blocks, wall, cpu = fill(run, place, workers)
                    table.add(str(workers), contender.name, blocks / wall / 1e6, 1e9 * cpu / blocks)


def part_events(run: Run) -> None:
    table = run.table(
        "Events at a fixed rate, stores and removals in turn",
        "blocks, messages/s",
        "CPU us/message",
    )
    with filled_sites(run, 8) as places:
        for blocks, rate in EVENT_RATES:
            payloads = hot_payloads(blocks)
            for _ in range(run.repeats):
                for place in places:
                    row = f"{blocks}, {rate:.0f}"
                    table.add(row, place.running.name, events_once(place, payloads, rate))


def events_once(place: Site, payloads: Sequence[bytes], rate: float) -> float:
    cpu = place.running.cpu_s()
    sent = place.engines.publish_at(0, payloads, rate, EVENTS_S)
    time.sleep(0.2)
    return 1e6 * (place.running.cpu_s() - cpu) / sent


def hot_payloads(blocks: int) -> list[bytes]:
    """Branches of one conversation come and go behind a beginning that stays.

    HOT_BRANCHES of them live at any time, so that stores and removals come in turn and the index
    stays the same size.  The payloads can be sent round after round.
    """
    stem = fleet.conversation(HOT_SEED, fleet.EVENT_BLOCKS)
    parent = int(stem.engine[-1])
    branches = [fleet.conversation(HOT_SEED + 1 + n, blocks) for n in range(2 * HOT_BRANCHES)]
    payloads = [fleet.stored(stem, 0, fleet.EVENT_BLOCKS)]
    for number, branch in enumerate(branches):
        payloads.append(fleet.stored(branch, 0, blocks, parent))
        payloads.append(fleet.removed(branches[number - HOT_BRANCHES], 0, blocks))
    return [*payloads, fleet.removed(stem, 0, fleet.EVENT_BLOCKS)]


def part_mixed(run: Run) -> None:
    table = run.table(
        f"POST /select, 64 hashes, {MIXED_CONNECTIONS} connections, while events arrive",
        "blocks, messages/s",
        "p50 us",
        "p99 us",
        "requests/s",
    )
    bodies = fleet.select_bodies(run.known, 64)
    with filled_sites(run, 8) as places:
        for blocks, rate in MIXED:
            payloads = hot_payloads(blocks)
            for _ in range(run.repeats):
                for place in places:
                    load = Wrk(place.running.port, bodies, MIXED_CONNECTIONS, round(EVENTS_S))
                    place.engines.publish_at(0, payloads, rate, EVENTS_S)
                    found = load.result()
                    rate_found = found.requests / EVENTS_S
                    row = f"{blocks}, {rate:.0f}"
                    table.add(row, place.running.name, found.p50_us, found.p99_us, rate_found)


def part_visible(run: Run) -> None:
    table = run.table(
        f"Event to visible while {CONNECTIONS} clients select without pause",
        "hashes per select",
        "p50 ms",
        "p99 ms",
        "events seen",
    )
    with filled_sites(run, 8) as places:
        for n_blocks in (8, 64, 512):
            bodies = fleet.select_bodies(run.known, n_blocks)
            for repeat in range(run.repeats):
                for place in places:
                    seen = visible_once(place, bodies, seed=10_000 * n_blocks + 1000 * repeat)
                    quantiles = statistics.quantiles(seen, n=100)
                    values = (1e3 * quantiles[49], 1e3 * quantiles[98], len(seen))
                    table.add(str(n_blocks), place.running.name, *values)


def visible_once(place: Site, bodies: list[bytes], seed: int) -> list[float]:
    """Seconds from the sending of each event to the end of the first answer that shows it.

    An upper bound: the answer itself waits in the same queue as the selects.
    """
    load = Wrk(place.running.port, bodies, CONNECTIONS, round(VISIBLE_S))
    time.sleep(0.5)
    until = time.perf_counter() + VISIBLE_S - 1.5
    seen = []
    while time.perf_counter() < until:
        conversation = fleet.conversation(seed + len(seen), VISIBLE_BLOCKS)
        payload = fleet.stored(conversation, 0, VISIBLE_BLOCKS)
        hashes = fleet.signed(conversation.blocks)
        sent = time.perf_counter()
        place.engines.publish(0, payload)
        while place.running.device_blocks(hashes)[1] != VISIBLE_BLOCKS:
            assert time.perf_counter() - sent < QUERYABLE_S_MAX, "the event never became visible"
        seen.append(time.perf_counter() - sent)
        time.sleep(VISIBLE_PAUSE_S)
    assert not load.result().errors
    return seen


def part_start(run: Run) -> None:
    table = run.table(
        "Start and memory",
        "",
        "start to first /select, s",
        "resident empty, MB",
        "resident full, MB",
    )
    body = {"token_ids": list(range(64))}
    for _ in range(run.repeats):
        for contender in run.contenders:
            with Running(contender, pinned=False) as running:
                running.wait_until_healthy()
                running.register(["tcp://127.0.0.1:1"], fleet.BLOCK_SIZE)
                running.call("POST", "/select", body)
                first = time.perf_counter() - running.started_at
            with Running(contender) as running:
                running.wait_until_healthy()
                time.sleep(1.0)
                empty = running.resident_mb()
            with site(contender, 8) as place:
                fill(run, place, 8)
                table.add("", contender.name, first, empty, place.running.resident_mb())


PARTS: dict[str, Callable[[Run], None]] = {
    "select": part_select,
    "life": part_life,
    "burst": part_burst,
    "events": part_events,
    "mixed": part_mixed,
    "visible": part_visible,
    "start": part_start,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure this service next to another.")
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--reference-python", help="Python with ai-dynamo-runtime==1.3.1")
    parser.add_argument("--before", metavar="COMMIT", help="of this service, to compare with")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write every single value there as well")
    arguments = parser.parse_args()
    if set(arguments.parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    with contextlib.ExitStack() as stack:
        contenders = [ours()]
        if arguments.before:
            tree = stack.enter_context(unpacked(arguments.before))
            contenders.append(ours("before", tree))
        if arguments.reference_python:
            contenders.append(reference(arguments.reference_python))
        measure(contenders, arguments)


def measure(contenders: list[Contender], arguments: argparse.Namespace) -> None:
    for contender in contenders:
        with Running(contender, pinned=False) as running:
            running.wait_until_healthy()  # and has compiled what was not in its cache
    pin_load()
    run = Run(contenders, arguments.repeats, fleet.conversations(), [])
    for name in arguments.parts or PARTS:
        before = len(run.tables)
        PARTS[name](run)
        for table in run.tables[before:]:
            print(table.markdown(contenders), flush=True)
    if arguments.json:
        values = {table.title: table.values for table in run.tables}
        arguments.json.write_text(json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
