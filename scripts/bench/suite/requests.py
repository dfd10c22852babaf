"""Parts: what a request costs, and how long it takes."""

import json
from collections.abc import Iterator
from functools import partial

from scripts.bench.contenders import both_cpus
from scripts.bench.http_load import Lives, hammer, hammer_lives
from scripts.bench.suite.samples import Measure, Row
from scripts.bench.suite.stages import Places, Site, filled
from scripts.bench.suite.work import Run, checked

CONNECTIONS = 64
LONG_CONNECTIONS = 8
"""Where bodies are long: what is under way when a load ends is work that nobody counts."""
LONG_HASHES = 4096
MEASURES = (
    Measure("CPU us/request"),
    Measure("requests/s", more_is_better=True),
    Measure("p50 us"),
    Measure("p99 us"),
)
SELECT_GOALS = {(8, 8): 2.0, (8, 512): 3.3, (8, 4096): 4.3, (256, 8): 3.0}
"""(workers, hashes) -> least ratio"""
TOKEN_GOALS = {2048: 4.0, 32_768: 6.0}
TOKEN_BYTES_MAX = 8 << 20
"""Of all bodies of one row."""
LIFE_GOALS = {(8, 64): 1.0, (256, 64): 1.4}
LIFE_CONNECTIONS = 8
LIFE_AHEAD = 64
STEPS = 3
CORES_GOAL = 2.0


def select(run: Run, places: Places) -> None:
    title = (
        f"POST /select by the hashes of a prompt, {CONNECTIONS} connections"
        f" ({LONG_CONNECTIONS} with {LONG_HASHES})"
    )
    table = run.table(title, "prompt", MEASURES, curve="hashes in a prompt")
    few = (8, 512, 4096) if places.workers == 8 else (8,)
    for n_blocks in run.extent.of(few, (8, 64, 512, 4096)):
        label = f"{n_blocks} hashes, {places.workers} workers"
        goal = SELECT_GOALS.get((places.workers, n_blocks))
        row = Row(label, n_blocks, f"{places.workers} workers", goal)
        bodies = run.bodies(n_blocks)
        run.compare_answers(row, places, bodies)
        number = LONG_CONNECTIONS if n_blocks >= LONG_HASHES else CONNECTIONS
        run.turns(table, row, places.sites, partial(_once, run, bodies, number))


def tokens(run: Run, places: Places) -> None:
    title = f"POST /select by the token_ids of a prompt, {LONG_CONNECTIONS} connections"
    table = run.table(title, "prompt", MEASURES, curve="token_ids in a prompt")
    for n_tokens in run.extent.of((2048, 32_768), (128, 131_072)):
        row = Row(
            f"{n_tokens} token_ids, {places.workers} workers",
            n_tokens,
            "8 workers",
            TOKEN_GOALS.get(n_tokens),
        )
        bodies = run.token_bodies(n_tokens, TOKEN_BYTES_MAX)
        run.compare_answers(row, places, bodies)
        run.turns(table, row, places.sites, partial(_once, run, bodies, LONG_CONNECTIONS))


def connections(run: Run, places: Places) -> None:
    table = run.table(
        "POST /select with 8 hashes by connections, 8 workers",
        "clients",
        MEASURES,
        curve="connections",
    )
    bodies = run.bodies(8)
    for number in run.extent.of((1,), (8, 64)):
        row = Row(f"connections: {number}", number, "8 hashes, 8 workers")
        run.turns(table, row, places.sites, partial(_once, run, bodies, number))


def _once(run: Run, bodies: list[bytes], number: int, place: Site) -> tuple[float, ...]:
    cpu, seconds = place.running.cpu_s(), run.extent.cell_s
    result = checked(hammer(place.running.port, bodies, number, seconds))
    cpu = place.running.cpu_s() - cpu
    rate = result.requests / seconds
    return 1e6 * cpu / result.requests, rate, result.p50_us, result.p99_us


def life(run: Run, places: Places) -> None:
    measures = (Measure("CPU us/life"), Measure("lives/s", more_is_better=True))
    table = run.table(
        f"select_and_reserve, prefill_complete and DELETE, {LIFE_CONNECTIONS} connections",
        "request",
        measures,
    )
    for n_blocks in run.extent.of((64,), (8, 512)):
        goal = LIFE_GOALS.get((places.workers, n_blocks))
        row = Row(f"life, {n_blocks} hashes, {places.workers} workers", goal=goal)
        bodies = run.bodies(n_blocks)
        names = iter(f"{n_blocks}-{number}-" for number in range(1_000_000))
        run.turns(table, row, places.sites, partial(_lives, run, bodies, names))


def _lives(run: Run, bodies: list[bytes], names: Iterator[str], place: Site) -> tuple[float, ...]:
    lives = Lives(next(names), place.contender.id_field, LIFE_AHEAD)
    port, seconds = place.running.port, run.extent.cell_s
    _hold(place, lives, bodies)
    cpu = place.running.cpu_s()
    result = checked(hammer_lives(port, bodies, LIFE_CONNECTIONS, seconds, lives))
    cpu = place.running.cpu_s() - cpu
    return STEPS * 1e6 * cpu / result.requests, result.requests / STEPS / seconds


def _hold(place: Site, lives: Lives, bodies: list[bytes]) -> None:
    """The reservations that are there before the first one ends."""
    for number in range(1, 2 * lives.ahead + 1):
        name = {lives.id_field: f"{lives.prefix}{number}"}
        prompt = json.loads(bodies[number % len(bodies)])
        place.running.call("POST", "/select_and_reserve", {**prompt, **name})
    for number in range(1, lives.ahead + 1):
        place.running.call("POST", f"/reservations/{lives.prefix}{number}/prefill_complete")


def cores(run: Run, _places: Places) -> None:
    """The services and the load share two CPUs, as they like."""
    measures = (MEASURES[1], MEASURES[0], *MEASURES[2:])
    table = run.table(
        "POST /select with two CPUs for the service and the load together", "prompt", measures
    )
    row = Row("512 hashes, 256 workers, two CPUs", goal=CORES_GOAL)
    if not run.wants(table, row):
        return
    bodies = run.bodies(512)
    with both_cpus(), filled(run.contenders, run.known, 256, pinned=False) as places:
        run.turns(table, row, places.sites, partial(_by_rate, run, bodies))


def _by_rate(run: Run, bodies: list[bytes], place: Site) -> tuple[float, ...]:
    cpu_us, rate, *latencies = _once(run, bodies, CONNECTIONS, place)
    return rate, cpu_us, *latencies
