"""Part of the floor: requests beside a server that only receives and answers them."""

import dataclasses
from functools import partial

from scripts.bench.http_load import load_select
from scripts.bench.suite.filled_services import FilledService, PartServices
from scripts.bench.suite.floor_server import compile_floor, read_answer, run_floor
from scripts.bench.suite.measurement_order import SuiteRun, check_answers
from scripts.bench.suite.request_parts import CONNECTIONS, LONG_CONNECTIONS, LONG_HASHES
from scripts.bench.suite.result_tables import ResultColumn, ResultRow

MEASURES = (
    ResultColumn("CPU us/request"),
    ResultColumn("by Linux"),
    ResultColumn("requests/s", more_is_better=True),
    ResultColumn("p99 us"),
)
GOALS = {8: 0.8}
"""Least share of the floor in the CPU of a request, by hashes."""


def floor(run: SuiteRun, places: PartServices) -> None:
    """Measure all services and the floor in turns; skip all without a C compiler."""
    table = run.table(
        f"POST /select and the floor, {CONNECTIONS} connections"
        f" ({LONG_CONNECTIONS} with {LONG_HASHES})",
        "prompt",
        MEASURES,
        note="The floor is a C server that receives a request and sends the same bytes, without"
        " reading more than its length.",
    )
    with compile_floor() as program:
        if program is None:
            return
        for n_hashes in run.extent.of((8,), (512, LONG_HASHES)):
            bodies = run.bodies(n_hashes)
            answer = read_answer(places.sites[0].running.port, bodies[0])
            number = LONG_CONNECTIONS if n_hashes >= LONG_HASHES else CONNECTIONS
            row = ResultRow(f"{n_hashes} hashes beside the floor", goal_floor=GOALS.get(n_hashes))
            with run_floor(program, answer) as (contender, running):
                site = dataclasses.replace(places.sites[0], contender=contender, running=running)
                measure = partial(_measure_once, run, bodies, number)
                run.turns(table, row, [*places.sites, site], measure)


def _measure_once(
    run: SuiteRun, bodies: list[bytes], number: int, place: FilledService
) -> tuple[float, ...]:
    running, seconds = place.running, run.extent.cell_s
    cpu, system = running.cpu_s(), running.system_s()
    result = check_answers(load_select(running.port, bodies, number, seconds))
    cpu, system = running.cpu_s() - cpu, running.system_s() - system
    costs = 1e6 * cpu / result.requests, 1e6 * system / result.requests
    return *costs, result.requests / seconds, result.p99_us
