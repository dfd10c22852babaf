"""Parts of requests: cost and duration."""

import json
from collections.abc import Iterator
from functools import partial

from scripts.bench.http_load import Lives, load_lives, load_select
from scripts.bench.services_under_test import using_both_cpus
from scripts.bench.suite.filled_services import FilledService, PartServices, filled_services
from scripts.bench.suite.measurement_order import SuiteRun, check_answers
from scripts.bench.suite.result_tables import ResultColumn, ResultRow

CONNECTIONS = 64
LONG_CONNECTIONS = 8
"""Connections for long bodies: requests in flight at the end of a load are not counted."""
LONG_HASHES = 4096
MEASURES = (
    ResultColumn("CPU us/request"),
    ResultColumn("requests/s", more_is_better=True),
    ResultColumn("p50 us"),
    ResultColumn("p99 us"),
)
SELECT_GOALS = {(8, 8): 2.0, (8, 512): 5.0, (8, 4096): 7.0, (256, 8): 4.5}
"""Least ratio by (workers, hashes)."""
TOKEN_GOALS = {2048: 4.0, 32_768: 6.0}
TOKEN_BYTES_MAX = 8 << 20
"""Limit of all bodies of a row, in bytes."""
LIFE_GOALS = {(8, 64): 1.0, (256, 64): 3.5}
LIFE_CONNECTIONS = 8
LIFE_AHEAD = 64
STEPS = 3
CORES_GOAL = 2.0


def select(run: SuiteRun, places: PartServices) -> None:
    title = (
        f"POST /select by the hashes of a prompt, {CONNECTIONS} connections"
        f" ({LONG_CONNECTIONS} with {LONG_HASHES})"
    )
    table = run.table(title, "prompt", MEASURES, curve="hashes in a prompt")
    few = (8, 512, 4096) if places.workers == 8 else (8,)
    for n_blocks in run.extent.of(few, (8, 64, 512, 4096)):
        label = f"{n_blocks} hashes, {places.workers} workers"
        goal = SELECT_GOALS.get((places.workers, n_blocks))
        row = ResultRow(label, n_blocks, f"{places.workers} workers", goal)
        bodies = run.bodies(n_blocks)
        run.compare_answers(row, places, bodies)
        number = LONG_CONNECTIONS if n_blocks >= LONG_HASHES else CONNECTIONS
        run.turns(table, row, places.sites, partial(_once, run, bodies, number))


def tokens(run: SuiteRun, places: PartServices) -> None:
    title = f"POST /select by the token_ids of a prompt, {LONG_CONNECTIONS} connections"
    table = run.table(title, "prompt", MEASURES, curve="token_ids in a prompt")
    for n_tokens in run.extent.of((2048, 32_768), (128, 131_072)):
        row = ResultRow(
            f"{n_tokens} token_ids, {places.workers} workers",
            n_tokens,
            "8 workers",
            TOKEN_GOALS.get(n_tokens),
        )
        bodies = run.token_bodies(n_tokens, TOKEN_BYTES_MAX)
        run.compare_answers(row, places, bodies)
        run.turns(table, row, places.sites, partial(_once, run, bodies, LONG_CONNECTIONS))


def connections(run: SuiteRun, places: PartServices) -> None:
    table = run.table(
        "POST /select with 8 hashes by connections, 8 workers",
        "clients",
        MEASURES,
        curve="connections",
    )
    bodies = run.bodies(8)
    for number in run.extent.of((1,), (8, 64)):
        row = ResultRow(f"connections: {number}", number, "8 hashes, 8 workers")
        run.turns(table, row, places.sites, partial(_once, run, bodies, number))


def _once(
    run: SuiteRun, bodies: list[bytes], number: int, place: FilledService
) -> tuple[float, ...]:
    cpu, seconds = place.running.cpu_s(), run.extent.cell_s
    result = check_answers(load_select(place.running.port, bodies, number, seconds))
    cpu = place.running.cpu_s() - cpu
    rate = result.requests / seconds
    return 1e6 * cpu / result.requests, rate, result.p50_us, result.p99_us


def life(run: SuiteRun, places: PartServices) -> None:
    measures = (ResultColumn("CPU us/life"), ResultColumn("lives/s", more_is_better=True))
    table = run.table(
        f"select_and_reserve, prefill_complete and DELETE, {LIFE_CONNECTIONS} connections",
        "request",
        measures,
    )
    for n_blocks in run.extent.of((64,), (8, 512)):
        goal = LIFE_GOALS.get((places.workers, n_blocks))
        row = ResultRow(f"life, {n_blocks} hashes, {places.workers} workers", goal=goal)
        bodies = run.bodies(n_blocks)
        names = iter(f"{n_blocks}-{number}-" for number in range(1_000_000))
        run.turns(table, row, places.sites, partial(_lives, run, bodies, names))


def _lives(
    run: SuiteRun, bodies: list[bytes], names: Iterator[str], place: FilledService
) -> tuple[float, ...]:
    lives = Lives(next(names), place.contender.id_field, LIFE_AHEAD)
    port, seconds = place.running.port, run.extent.cell_s
    hold_lives(place, lives, bodies)
    cpu = place.running.cpu_s()
    result = check_answers(load_lives(port, bodies, LIFE_CONNECTIONS, seconds, lives))
    cpu = place.running.cpu_s() - cpu
    return STEPS * 1e6 * cpu / result.requests, result.requests / STEPS / seconds


def hold_lives(place: FilledService, lives: Lives, bodies: list[bytes]) -> None:
    """Make the reservations that exist before the first end."""
    for number in range(1, 2 * lives.ahead + 1):
        name = {lives.id_field: f"{lives.prefix}{number}"}
        prompt = json.loads(bodies[number % len(bodies)])
        place.running.call_json("POST", "/select_and_reserve", {**prompt, **name})
    for number in range(1, lives.ahead + 1):
        place.running.call_json("POST", f"/reservations/{lives.prefix}{number}/prefill_complete")


def cores(run: SuiteRun, _places: PartServices) -> None:
    """Measure services that share two CPUs with the load."""
    measures = (MEASURES[1], MEASURES[0], *MEASURES[2:])
    table = run.table(
        "POST /select with two CPUs for the service and the load together", "prompt", measures
    )
    row = ResultRow("512 hashes, 256 workers, two CPUs", goal=CORES_GOAL)
    if not run.wants(table, row):
        return
    bodies = run.bodies(512)
    with using_both_cpus(), filled_services(run.contenders, run.known, 256, pinned=False) as places:
        run.turns(table, row, places.sites, partial(_by_rate, run, bodies))


def _by_rate(run: SuiteRun, bodies: list[bytes], place: FilledService) -> tuple[float, ...]:
    cpu_us, rate, *latencies = _once(run, bodies, CONNECTIONS, place)
    return rate, cpu_us, *latencies
