"""Parts of scale: growth with the ranks of a fleet and its blocks."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from scripts.bench import conversation_data
from scripts.bench.http_load import load_select
from scripts.bench.services_under_test import RunningService, ServiceUnderTest
from scripts.bench.suite.filled_services import FilledService, PartServices, started_service
from scripts.bench.suite.measurement_order import SuiteRun, check_answers
from scripts.bench.suite.result_tables import ResultColumn, ResultRow, ResultTable

RANKS_PER_WORKER = 8
RANKS_HASHES = 64
CONNECTIONS = 64
CHAIN_BLOCKS = 1000
CHAIN_SEED = 100_000_000
CHAINS_AT_ONCE = 250
BLOCKS_WORKERS = 8
BLOCKS_HASHES = 512
BLOCKS_BODIES = 256
ROOM = ("--index-max-blocks", "20000000", "--index-max-bytes", "4000000000")
"""Flags of this service for ten million blocks; the reference has no bound."""
MEASURES = (
    ResultColumn("CPU us/request"),
    ResultColumn("requests/s", more_is_better=True),
    ResultColumn("p50 us"),
    ResultColumn("p99 us"),
    ResultColumn("resident MB"),
)


def ranks(run: SuiteRun, _places: PartServices) -> None:
    table = run.table(
        f"POST /select with {RANKS_HASHES} hashes by the ranks of a fleet",
        "fleet",
        MEASURES,
        curve="ranks",
        note=f"Workers of {RANKS_PER_WORKER} ranks each, that nobody listens to, and of which"
        " nothing is known: the reference opens about a thousand sockets at most.",
    )
    bodies = run.bodies(RANKS_HASHES)
    sizes = run.extent.of((64, 1024, 4096), (8, 256))
    rows = [ResultRow(f"{n_ranks} ranks", n_ranks, f"{RANKS_HASHES} hashes") for n_ranks in sizes]
    with contextlib.ExitStack() as stack:
        sites: list[FilledService] = []
        for row in _wanted_sizes(run, table, rows):
            sites = sites or [
                stack.enter_context(_start_unsubscribed(each)) for each in run.contenders
            ]
            for place in sites:
                _grow(place, int(row.x) // RANKS_PER_WORKER)
            run.turns(table, row, sites, partial(_once, run, bodies))


def _wanted_sizes(run: SuiteRun, table: ResultTable, rows: Sequence[ResultRow]) -> list[ResultRow]:
    return [row for row in rows if run.wants(table, row)]


@contextlib.contextmanager
def _start_unsubscribed(contender: ServiceUnderTest) -> Iterator[FilledService]:
    """Start a service without workers and subscriptions."""
    engines = conversation_data.EventPublishers(0)
    # Without events ours would assume what is booked, which others do not.
    off = {"DYN_USE_KV_EVENTS": "false", "SELECT_SERVICE_NO_ASSUMED_INDEX": "true"}
    with RunningService(contender.with_variables(**off)) as running:
        running.wait_until_healthy()
        yield FilledService(contender, running, engines, 0)
    engines.close()


def _grow(place: FilledService, workers: int) -> None:
    for worker_id in range(place.workers + 1, workers + 1):
        place.running.register_worker(
            worker_id, conversation_data.BLOCK_SIZE, data_parallel_size=RANKS_PER_WORKER
        )
    place.workers = workers


def blocks(run: SuiteRun, _places: PartServices) -> None:
    table = run.table(
        f"POST /select with {BLOCKS_HASHES} hashes by the blocks that a fleet of"
        f" {BLOCKS_WORKERS} holds",
        "index",
        MEASURES,
        curve="blocks",
        note=f"Chains of {CHAIN_BLOCKS} blocks, each held by one worker."
        f" Ours with `{' '.join(ROOM)}`.",
    )
    sizes = run.extent.of((100_000, 1_000_000), (10_000,), (10_000_000,))
    rows = [
        ResultRow(f"{n_blocks} blocks", n_blocks, f"{BLOCKS_HASHES} hashes") for n_blocks in sizes
    ]
    with contextlib.ExitStack() as stack:
        sites: list[FilledService] = []
        held = 0
        for row in _wanted_sizes(run, table, rows):
            sites = sites or [
                stack.enter_context(started_service(_roomy(each), BLOCKS_WORKERS))
                for each in run.contenders
            ]
            chains = range(held, int(row.x) // CHAIN_BLOCKS)
            held = chains.stop
            for first in range(chains.start, chains.stop, CHAINS_AT_ONCE):
                _announce(sites, range(first, min(first + CHAINS_AT_ONCE, chains.stop)))
            bodies = conversation_data.select_bodies(_sampled(held), BLOCKS_HASHES, BLOCKS_BODIES)
            run.turns(table, row, sites, partial(_once, run, bodies))


def _roomy(contender: ServiceUnderTest) -> ServiceUnderTest:
    return contender.with_flags(*ROOM) if contender.is_ours else contender


def _announce(sites: Sequence[FilledService], chains: range) -> None:
    """Publish to all workers at once, waiting each time until the blocks are queryable."""
    for number in chains:
        chain = conversation_data.make_conversation(CHAIN_SEED + number, CHAIN_BLOCKS)
        for first in range(0, CHAIN_BLOCKS, conversation_data.EVENT_BLOCKS):
            payload = conversation_data.stored_batch(
                chain, first, min(first + conversation_data.EVENT_BLOCKS, CHAIN_BLOCKS)
            )
            for place in sites:
                place.engines.publish(number % BLOCKS_WORKERS, payload)
    for place in sites:
        place.wait_until_queryable()


def _sampled(n_chains: int) -> list[conversation_data.Conversation]:
    picked = np.random.default_rng(3).integers(0, n_chains, BLOCKS_BODIES).tolist()
    return [
        conversation_data.make_conversation(CHAIN_SEED + number, CHAIN_BLOCKS) for number in picked
    ]


def _once(run: SuiteRun, bodies: list[bytes], place: FilledService) -> tuple[float, ...]:
    cpu, seconds = place.running.cpu_s(), run.extent.cell_s
    result = check_answers(load_select(place.running.port, bodies, CONNECTIONS, seconds))
    cpu, memory = place.running.cpu_s() - cpu, place.running.resident_mb()
    rate = result.requests / seconds
    return 1e6 * cpu / result.requests, rate, result.p50_us, result.p99_us, memory
