"""Parts of KV events: cost, throughput, and requests under load."""

import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial

from scripts.bench import conversation_data
from scripts.bench.http_load import BackgroundLoad
from scripts.bench.suite.filled_services import (
    FilledService,
    PartServices,
    burst_messages,
    fill_index,
    started_service,
)
from scripts.bench.suite.measurement_order import SuiteRun, check_answers
from scripts.bench.suite.result_tables import ResultColumn, ResultRow

BURST_GOAL = 1.4
RATES = {64: 2000.0, 8: 5000.0, 1: 10_000.0}
"""Messages per second by blocks of an event."""
EVENT_GOALS = {64: 0.9, 8: 0.8, 1: 0.9}
MIXED_RATES = {64: 2000.0, 1: 20_000.0}
MIXED_GOALS = {1: 0.8}
MIXED_CELLS = 2
"""Factor of the duration: the measure is the slowest answers."""
MIXED_CONNECTIONS = 4
MIXED_HASHES = 64
PACED_CONNECTIONS, PACED_PAUSE_MS = 8, 8
"""Some 1,000 requests per second."""
PACED_GOAL = 2.0
VISIBLE_CONNECTIONS = 64
VISIBLE_S = 8
VISIBLE_BLOCKS = 8
VISIBLE_PAUSE_S = 0.01
VISIBLE_SEED = 20_000_000
VISIBLE_WAIT_S_MAX = 30.0
HOT_BRANCHES = 256
HOT_SEED = 5000


def burst(run: SuiteRun, _places: PartServices) -> None:
    measures = (ResultColumn("M blocks/s", more_is_better=True), ResultColumn("CPU ns/block"))
    title = "Burst of 64-block store events into an empty index, wire to queryable"
    table = run.table(title, "fleet", measures)
    for workers in run.extent.of((8,), (256,)):
        row = ResultRow(f"burst, {workers} workers", goal=BURST_GOAL if workers == 8 else None)
        messages = burst_messages(run.known, workers)
        n_blocks = sum(holding.depth_blocks for holding in conversation_data.make_holdings(workers))
        if not run.wants(table, row):
            continue
        for _ in range(run.extent.repeats):
            for contender in run.contenders:
                with started_service(contender, workers) as place:
                    run.turn(table, row, place, partial(_burst, messages, n_blocks))


def _burst(
    messages: Sequence[tuple[int, bytes]], n_blocks: int, place: FilledService
) -> tuple[float, ...]:
    wall, cpu = fill_index(place, messages)
    return n_blocks / wall / 1e6, 1e9 * cpu / n_blocks


def events(run: SuiteRun, places: PartServices) -> None:
    """Measure CPU at a rate that all services sustain."""
    measures = (ResultColumn("CPU us/message"), ResultColumn("messages/s", more_is_better=True))
    title = "Event messages at a fixed rate, stores and removals in turn"
    table = run.table(title, "message", measures, note="messages/s are what the publisher sent.")
    for blocks, rate in RATES.items():
        row = ResultRow(f"{blocks}-block messages, {rate:.0f}/s", goal=EVENT_GOALS[blocks])
        payloads = hot_payloads(blocks)
        measure = partial(_events, payloads, rate, run.extent.cell_s)
        run.turns(table, row, places.sites, measure)


def _events(
    payloads: Sequence[bytes], rate: float, seconds: float, place: FilledService
) -> tuple[float, ...]:
    cpu = place.running.cpu_s()
    sent = place.engines.publish_at(0, payloads, rate, seconds)
    place.wait_until_queryable()
    return 1e6 * (place.running.cpu_s() - cpu) / sent, sent / seconds


def hot_payloads(blocks: int) -> list[bytes]:
    """Return payloads in which branches of a conversation come and go behind a fixed beginning.

    HOT_BRANCHES of them live at any time: stores and removals alternate and the index keeps its
    size.
    The payloads can be sent round after round.
    """
    stem = conversation_data.make_conversation(HOT_SEED, conversation_data.EVENT_BLOCKS)
    parent = int(stem.engine[-1])
    branches = [
        conversation_data.make_conversation(HOT_SEED + 1 + n, blocks)
        for n in range(2 * HOT_BRANCHES)
    ]
    payloads = [conversation_data.stored_batch(stem, 0, conversation_data.EVENT_BLOCKS)]
    for number, branch in enumerate(branches):
        payloads.append(conversation_data.stored_batch(branch, 0, blocks, parent))
        # Negative in the first half: the branches of the previous round are removed.
        payloads.append(conversation_data.removed_batch(branches[number - HOT_BRANCHES], 0, blocks))
    return [*payloads, conversation_data.removed_batch(stem, 0, conversation_data.EVENT_BLOCKS)]


def mixed(run: SuiteRun, places: PartServices) -> None:
    measures = (
        ResultColumn("p99 us"),
        ResultColumn("p50 us"),
        ResultColumn("requests/s", more_is_better=True),
        ResultColumn("messages/s", more_is_better=True),
    )
    table = run.table(
        f"POST /select, {MIXED_HASHES} hashes, {MIXED_CONNECTIONS} connections, under events",
        "events",
        measures,
        note="Publisher and clients share a CPU; messages/s are what the publisher sent.",
    )
    bodies = run.bodies(MIXED_HASHES)
    for blocks, rate in MIXED_RATES.items():
        row = ResultRow(f"under {rate:.0f} {blocks}-block messages/s", goal=MIXED_GOALS.get(blocks))
        payloads, seconds = hot_payloads(blocks), MIXED_CELLS * run.extent.cell_s
        run.turns(table, row, places.sites, partial(_mixed, bodies, payloads, rate, seconds))
    if not shutil.which("wrk"):
        return
    rate = MIXED_RATES[1]
    label = f"{PACED_CONNECTIONS} clients with {PACED_PAUSE_MS} ms pauses, {rate:.0f} 1-block"
    row = ResultRow(f"{label} messages/s", goal=PACED_GOAL)
    measure = partial(
        _measure_paced, bodies, hot_payloads(1), rate, MIXED_CELLS * run.extent.cell_s
    )
    run.turns(table, row, places.sites, measure)


def _measure_paced(
    bodies: list[bytes], payloads: Sequence[bytes], rate: float, seconds: int, place: FilledService
) -> tuple[float, ...]:
    pause, port = str(PACED_PAUSE_MS), place.running.port
    load = BackgroundLoad(port, bodies, PACED_CONNECTIONS, seconds, "paced.lua", pause)
    return _latencies(load, payloads, rate, seconds, place)


def _mixed(
    bodies: list[bytes], payloads: Sequence[bytes], rate: float, seconds: int, place: FilledService
) -> tuple[float, ...]:
    load = BackgroundLoad(place.running.port, bodies, MIXED_CONNECTIONS, seconds)
    return _latencies(load, payloads, rate, seconds, place)


def _latencies(
    load: BackgroundLoad,
    payloads: Sequence[bytes],
    rate: float,
    seconds: int,
    place: FilledService,
) -> tuple[float, ...]:
    sent = place.engines.publish_at(0, payloads, rate, seconds)
    found = check_answers(load.result())
    place.wait_until_queryable()
    return found.p99_us, found.p50_us, found.requests / seconds, sent / seconds


def visible(run: SuiteRun, places: PartServices) -> None:
    table = run.table(
        f"Event to visible while {VISIBLE_CONNECTIONS} clients select without pause",
        "hashes per select",
        (
            ResultColumn("p99 ms"),
            ResultColumn("p50 ms"),
            ResultColumn("events seen", more_is_better=True),
        ),
        note="From sending an event to the end of the first answer that shows it, which itself"
        " waits behind the selects.",
    )
    seeds = iter(range(VISIBLE_SEED, 2 * VISIBLE_SEED, 100_000))
    for n_blocks in (8, 64, 512):
        measure = partial(_visible, run.bodies(n_blocks), seeds)
        run.turns(table, ResultRow(f"visible, {n_blocks} hashes"), places.sites, measure)


def _visible(bodies: list[bytes], seeds: Iterator[int], place: FilledService) -> tuple[float, ...]:
    load = BackgroundLoad(place.running.port, bodies, VISIBLE_CONNECTIONS, VISIBLE_S)
    seed = next(seeds)
    # Lets the load reach its steady state first.
    time.sleep(0.5)
    until = time.perf_counter() + VISIBLE_S - 1.5
    seen: list[float] = []
    while time.perf_counter() < until:
        seen.append(
            _seen_after_s(
                conversation_data.make_conversation(seed + len(seen), VISIBLE_BLOCKS), place
            )
        )
        time.sleep(VISIBLE_PAUSE_S)
    check_answers(load.result())
    quantiles = statistics.quantiles(seen, n=100)
    return 1e3 * quantiles[98], 1e3 * quantiles[49], len(seen)


def _seen_after_s(conversation: conversation_data.Conversation, place: FilledService) -> float:
    payload = conversation_data.stored_batch(conversation, 0, VISIBLE_BLOCKS)
    hashes = conversation_data.as_signed(conversation.blocks)
    sent = time.perf_counter()
    place.engines.publish(0, payload)
    while place.running.device_blocks(hashes)[1] != VISIBLE_BLOCKS:
        assert time.perf_counter() - sent < VISIBLE_WAIT_S_MAX, "the event never became visible"
    return time.perf_counter() - sent
