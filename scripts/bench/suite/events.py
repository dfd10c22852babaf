"""Parts: what KV events cost, how fast they go in, and how requests fare beside them."""

import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial

from scripts.bench import fleet
from scripts.bench.http_load import Wrk
from scripts.bench.suite.samples import Measure, Row
from scripts.bench.suite.stages import Places, Site, burst_messages, fill, site
from scripts.bench.suite.work import Run, checked

BURST_GOAL = 1.4
RATES = {64: 2000.0, 8: 5000.0, 1: 10_000.0}
"""Blocks of an event -> messages per second."""
EVENT_GOALS = {64: 0.9, 8: 0.8, 1: 0.9}
MIXED_RATES = {64: 2000.0, 1: 20_000.0}
MIXED_GOALS = {1: 0.8}
MIXED_CELLS = 2
"""How many times longer than others: it is about the slowest answers."""
MIXED_CONNECTIONS = 4
MIXED_HASHES = 64
VISIBLE_CONNECTIONS = 64
VISIBLE_S = 8
VISIBLE_BLOCKS = 8
VISIBLE_PAUSE_S = 0.01
VISIBLE_SEED = 20_000_000
VISIBLE_WAIT_S_MAX = 30.0
HOT_BRANCHES = 256
HOT_SEED = 5000


def burst(run: Run, _places: Places) -> None:
    measures = (Measure("M blocks/s", more_is_better=True), Measure("CPU ns/block"))
    title = "Burst of 64-block store events into an empty index, wire to queryable"
    table = run.table(title, "fleet", measures)
    for workers in run.extent.of((8,), (256,)):
        row = Row(f"burst, {workers} workers", goal=BURST_GOAL if workers == 8 else None)
        messages = burst_messages(run.known, workers)
        n_blocks = sum(holding.depth_blocks for holding in fleet.holdings(workers))
        if not run.wants(table, row):
            continue
        for _ in range(run.extent.repeats):
            for contender in run.contenders:
                with site(contender, workers) as place:
                    run.turn(table, row, place, partial(_burst, messages, n_blocks))


def _burst(messages: Sequence[tuple[int, bytes]], n_blocks: int, place: Site) -> tuple[float, ...]:
    wall, cpu = fill(place, messages)
    return n_blocks / wall / 1e6, 1e9 * cpu / n_blocks


def events(run: Run, places: Places) -> None:
    """CPU at a rate that both can follow."""
    measures = (Measure("CPU us/message"), Measure("messages/s", more_is_better=True))
    title = "Event messages at a fixed rate, stores and removals in turn"
    table = run.table(title, "message", measures, note="messages/s are what the publisher sent.")
    for blocks, rate in RATES.items():
        row = Row(f"{blocks}-block messages, {rate:.0f}/s", goal=EVENT_GOALS[blocks])
        payloads = hot_payloads(blocks)
        measure = partial(_events, payloads, rate, run.extent.cell_s)
        run.turns(table, row, places.sites, measure)


def _events(
    payloads: Sequence[bytes], rate: float, seconds: float, place: Site
) -> tuple[float, ...]:
    cpu = place.running.cpu_s()
    sent = place.engines.publish_at(0, payloads, rate, seconds)
    place.wait_until_queryable()
    return 1e6 * (place.running.cpu_s() - cpu) / sent, sent / seconds


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


def mixed(run: Run, places: Places) -> None:
    measures = (
        Measure("p99 us"),
        Measure("p50 us"),
        Measure("requests/s", more_is_better=True),
        Measure("messages/s", more_is_better=True),
    )
    table = run.table(
        f"POST /select, {MIXED_HASHES} hashes, {MIXED_CONNECTIONS} connections, under events",
        "events",
        measures,
        note="Publisher and clients share a CPU; messages/s are what the publisher sent.",
    )
    bodies = run.bodies(MIXED_HASHES)
    for blocks, rate in MIXED_RATES.items():
        row = Row(f"under {rate:.0f} {blocks}-block messages/s", goal=MIXED_GOALS.get(blocks))
        payloads, seconds = hot_payloads(blocks), MIXED_CELLS * run.extent.cell_s
        run.turns(table, row, places.sites, partial(_mixed, bodies, payloads, rate, seconds))


def _mixed(
    bodies: list[bytes], payloads: Sequence[bytes], rate: float, seconds: int, place: Site
) -> tuple[float, ...]:
    load = Wrk(place.running.port, bodies, MIXED_CONNECTIONS, seconds)
    sent = place.engines.publish_at(0, payloads, rate, seconds)
    found = checked(load.result())
    place.wait_until_queryable()
    return found.p99_us, found.p50_us, found.requests / seconds, sent / seconds


def visible(run: Run, places: Places) -> None:
    table = run.table(
        f"Event to visible while {VISIBLE_CONNECTIONS} clients select without pause",
        "hashes per select",
        (Measure("p99 ms"), Measure("p50 ms"), Measure("events seen", more_is_better=True)),
        note="From sending an event to the end of the first answer that shows it, which itself"
        " waits behind the selects.",
    )
    seeds = iter(range(VISIBLE_SEED, 2 * VISIBLE_SEED, 100_000))
    for n_blocks in (8, 64, 512):
        measure = partial(_visible, run.bodies(n_blocks), seeds)
        run.turns(table, Row(f"visible, {n_blocks} hashes"), places.sites, measure)


def _visible(bodies: list[bytes], seeds: Iterator[int], place: Site) -> tuple[float, ...]:
    load = Wrk(place.running.port, bodies, VISIBLE_CONNECTIONS, VISIBLE_S)
    seed = next(seeds)
    time.sleep(0.5)
    until = time.perf_counter() + VISIBLE_S - 1.5
    seen: list[float] = []
    while time.perf_counter() < until:
        seen.append(_seen_after_s(fleet.conversation(seed + len(seen), VISIBLE_BLOCKS), place))
        time.sleep(VISIBLE_PAUSE_S)
    checked(load.result())
    quantiles = statistics.quantiles(seen, n=100)
    return 1e3 * quantiles[98], 1e3 * quantiles[49], len(seen)


def _seen_after_s(conversation: fleet.Conversation, place: Site) -> float:
    payload = fleet.stored(conversation, 0, VISIBLE_BLOCKS)
    hashes = fleet.signed(conversation.blocks)
    sent = time.perf_counter()
    place.engines.publish(0, payload)
    while place.running.device_blocks(hashes)[1] != VISIBLE_BLOCKS:
        assert time.perf_counter() - sent < VISIBLE_WAIT_S_MAX, "the event never became visible"
    return time.perf_counter() - sent
