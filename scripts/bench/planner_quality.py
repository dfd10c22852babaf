"""Quality of the planner's decisions: kept promises and GPU hours, against the least possible.

    python -m scripts.bench.planner_quality [--scenario NAME] [--mode agg] --trace FILE
    python -m scripts.bench.planner_quality --equal-promise --trace FILE

Everything is simulated and reproducible. Printed times are CPU times.

--equal-promise: cost of the document's planner at the same quality. The document's planner gets
targets tightened by factors, and minimum replicas as shares of the largest need, in all
combinations, with and without the load loop. The cheapest sufficient combination is the comparison,
although its choice needs the traffic in advance.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import ceil, pi, sin
from pathlib import Path
from random import Random
from time import process_time
from typing import Any, NamedTuple

from msgspec.structs import replace

from scripts.bench.planner.generated_requests import generate_requests
from select_service.planner.config_loader import DOCUMENT_DEFAULTS
from select_service.planner.core.settings import DeploymentMode, DeploymentSettings, scaled_roles
from select_service.planner.core.tick_input import EngineLimits, Role
from select_service.planner.replay.least_gpu_hours import (
    ServicePromise,
    find_least_replicas,
    least_gpu_hours,
)
from select_service.planner.replay.planner_run import (
    PlannerRun,
    ReplayCourse,
    ReplayOutcome,
    make_promise,
)
from select_service.planner.replay.replay_traffic import trace_requests
from select_service.planner.replay.simulated_engine import EngineSpeed, SimulatedRequest
from select_service.planner.replay.simulated_fleet import FleetOptions
from select_service.planner.wiring import build_deployment

SEED = 12
FACTORS = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3)
"""Factors of the targets of the document's planner."""
FLOORS = (0.0, 0.5, 0.75, 1.0)
"""Minimum replicas of the document's planner, as shares of the largest need."""
LEAST_INTERVAL_S = 300.0
EQUAL_INTERVAL_S = 60.0
MOST = 16
SPEED = EngineSpeed(
    base_s=0.01, per_prefill_token_s=1.2e-4, per_kv_token_s=5e-8, per_request_s=2e-4
)
BURST_S = (1500.0, 1800.0)
HEAD = f"{'':34}{'kept':>7}{'ttft':>7}{'itl':>7}{'GPU h':>8}{'/least':>7}{'rev/h':>6}"


class Scenario(NamedTuple):
    """Requests of a fleet; `begin`: initial replicas of a role, and three more for an aggregated
    fleet.
    """

    requests: Callable[[float], list[SimulatedRequest]]
    hours: float
    begin: int
    ttft_ms: float = 3000.0


def normal(rng: Random) -> tuple[int, int, int]:
    isl = round(min(20_000.0, rng.lognormvariate(8.4, 0.5)))
    return isl, max(1, round(isl * rng.uniform(0.5, 1.0))), round(200 + rng.expovariate(1 / 500))


def bimodal(rng: Random) -> tuple[int, int, int]:
    if rng.random() < 0.12:
        isl = rng.randint(12_000, 16_000)
        return isl, isl, rng.randint(100, 300)
    isl = rng.randint(1000, 3000)
    return isl, isl, rng.randint(300, 900)


def heavy_tailed(rng: Random) -> tuple[int, int, int]:
    isl = round(min(16_000.0, 900.0 * rng.paretovariate(1.3)))
    return isl, isl, round(min(4000.0, 150.0 * rng.paretovariate(1.4)))


def _make_scenario(
    rate: Callable[[float], float], most: float, lengths: Callable[..., tuple[int, int, int]]
) -> Callable[[float], list[SimulatedRequest]]:
    def requests(until_s: float) -> list[SimulatedRequest]:
        return list(
            generate_requests(rate, until_s=until_s, rate_max=most, lengths=lengths, seed=SEED)
        )

    return requests


def ramp(peak: float) -> Callable[[float], float]:
    """Return a rate from 10 % to 100 % in two hours, and back."""
    return lambda now: peak * (0.1 + 0.9 * max(0.0, 1.0 - abs(now - 7200.0) / 7200.0))


def waves(mean: float) -> Callable[[float], float]:
    return lambda now: mean * (1.0 + 0.4 * sin(2 * pi * now / 5400.0))


def noisy(mean: float) -> Callable[[float], float]:
    """Return a rate that changes each minute."""
    return lambda now: mean * Random(int(now // 60)).uniform(0.8, 1.2)


def conversation(path: Path) -> Callable[[float], list[SimulatedRequest]]:
    """Return the trace with a threefold rate for five minutes."""

    def requests(until_s: float) -> list[SimulatedRequest]:
        found = [each for each in trace_requests(path) if each.arrived_s < until_s]
        rng = Random(SEED)
        more = [
            SimulatedRequest(
                each.arrived_s + rng.uniform(0.0, 3.0), each.isl, each.osl, each.uncached
            )
            for each in found
            for _ in range(2)
            if BURST_S[0] <= each.arrived_s < BURST_S[1]
        ]
        return sorted([*found, *more], key=lambda each: each.arrived_s)

    return requests


def scenarios(trace: Path | None) -> dict[str, Scenario]:
    known = {
        "ramp": Scenario(_make_scenario(ramp(7.0), 7.0, normal), 4.0, 1),
        "bimodal": Scenario(_make_scenario(waves(8.0), 12.0, bimodal), 1.5, 5),
        "heavy": Scenario(_make_scenario(waves(10.0), 14.0, heavy_tailed), 1.5, 5),
        "plateau": Scenario(_make_scenario(noisy(10.0), 12.0, normal), 1.5, 5),
    }
    if trace is not None:
        known["burst"] = Scenario(conversation(trace), 3500.0 / 3600.0, 6, 10_000.0)
    return known


def settings_of(
    mode: str, interval: float, load: bool, ttft_ms: float, **given: object
) -> DeploymentSettings:
    base: dict[str, Any] = {
        "mode": mode,
        "ttft_ms": ttft_ms,
        "itl_ms": 80.0 if mode == "agg" else 40.0,
        "max_gpu_budget": MOST if mode == "agg" else 2 * MOST,
        "throughput_adjustment_interval_seconds": interval,
        "enable_load_scaling": load,
        "scale_interval_seconds": 5.0,
        **given,
    }
    return DeploymentSettings(**base)


def fleet_of(mode: DeploymentMode) -> FleetOptions:
    roles = scaled_roles(DeploymentSettings(mode=mode))
    chunk = 512 if mode == "agg" else 4096
    limits = EngineLimits(max_num_batched_tokens=chunk, max_num_seqs=256, max_kv_tokens=500_000)
    return FleetOptions(
        roles=roles,
        speed=dict.fromkeys(roles, SPEED),
        limits=dict.fromkeys(roles, limits),
        startup_s=120.0,
    )


def fresh(requests: Sequence[SimulatedRequest]) -> Iterator[SimulatedRequest]:
    return (
        SimulatedRequest(each.arrived_s, each.isl, each.osl, each.uncached) for each in requests
    )


def needed_of(
    requests: Sequence[SimulatedRequest], mode: DeploymentMode, ttft_ms: float
) -> dict[Role, list[int]]:
    settings = settings_of(mode, 60.0, False, ttft_ms)
    options = fleet_of(mode)
    most = dict.fromkeys(options.roles, MOST)
    return find_least_replicas(
        requests, options, make_promise(settings), interval_s=LEAST_INTERVAL_S, most=most
    )


def least_of(needed: Mapping[Role, Sequence[int]]) -> float:
    """Return the least GPU hours, with one GPU a replica."""
    gpus = dict.fromkeys(needed, 1)
    return least_gpu_hours(needed, gpus, interval_s=LEAST_INTERVAL_S, least=gpus)


def configurations(
    mode: str, intervals: Sequence[float], ttft_ms: float
) -> dict[str, DeploymentSettings]:
    found = {}
    for interval in intervals:
        for load in (False, True):
            with_load = " +load" if load else ""
            found[f"ours {interval:g}s{with_load}"] = settings_of(mode, interval, load, ttft_ms)
            document = {**DOCUMENT_DEFAULTS, "load_predictor": "kalman"}
            found[f"document {interval:g}s{with_load}"] = settings_of(
                mode, interval, load, ttft_ms, **document
            )
    return found


def row(name: str, found: ReplayOutcome) -> str:
    least = found.least_gpu_hours
    part = found.gpu_hours / least if least else 0.0
    return (
        f"{name:34}{found.attainment:7.3f}{found.attainment_ttft:7.3f}{found.attainment_itl:7.3f}"
        f"{found.gpu_hours:8.2f}{part:7.2f}{found.reversals_an_hour:6.1f}"
        f"  failed {found.failed}, over {found.over_budget_s:.0f} s"
        f", up {sum(found.scale_ups.values())}, down {sum(found.scale_downs.values())}"
        f", most {list(found.most_replicas.values())}"
    )


class TunedRun(NamedTuple):
    """Result of the document's planner with tighter targets and more replicas."""

    factor: float
    floor: float
    load: bool
    kept: float
    gpu_hours: float

    def __str__(self) -> str:
        load = ", load loop" if self.load else ""
        given = f"targets x {self.factor:g}, floor {self.floor:g}{load}"
        return f"{self.kept:.3f} kept, {self.gpu_hours:.2f} GPU h ({given})"


def run_tuned(
    scenario: Scenario,
    requests: Sequence[SimulatedRequest],
    mode: str,
    needed: Mapping[Role, Sequence[int]],
) -> Iterator[TunedRun]:
    """Run all combinations."""
    for factor, floor, load in product(FACTORS, FLOORS, (False, True)):
        least = {
            f"{role}_min_endpoint": max(1, ceil(floor * max(counts)))
            for role, counts in needed.items()
        }
        plain = settings_of(mode, EQUAL_INTERVAL_S, load, scenario.ttft_ms)
        tight = {"ttft_ms": plain.ttft_ms * factor, "itl_ms": plain.itl_ms * factor}
        given = {**DOCUMENT_DEFAULTS, "load_predictor": "kalman", **least, **tight}
        settings = replace(plain, **given)
        kept, hours = kept_at(scenario, requests, settings, make_promise(plain))
        yield TunedRun(factor, floor, load, kept, hours)


def kept_at(
    scenario: Scenario,
    requests: Sequence[SimulatedRequest],
    settings: DeploymentSettings,
    promise: ServicePromise,
) -> tuple[float, float]:
    """Return the share of requests that keep a promise, and the GPU hours."""
    own = list(fresh(requests))
    hours = run_of(scenario, settings).run_course(own).gpu_hours
    return sum(map(promise.is_kept, own)) / len(own), hours


class EqualPromiseComparison(NamedTuple):
    """Comparison at one promise.

    wanted: quality of this planner, or the promised quality if smaller
    """

    wanted: float
    gpu_hours: float
    document: Sequence[TunedRun]


def compare_scenario(
    scenario: Scenario,
    requests: Sequence[SimulatedRequest],
    mode: str,
    needed: Mapping[Role, Sequence[int]],
) -> EqualPromiseComparison:
    """Compare with the cheapest combination of at least the same quality."""
    settings = settings_of(mode, EQUAL_INTERVAL_S, False, scenario.ttft_ms)
    kept, hours = kept_at(scenario, requests, settings, make_promise(settings))
    print(f"   ours: {kept:.3f} kept, {hours:.2f} GPU h")
    found = list(run_tuned(scenario, requests, mode, needed))
    promised = min(kept, settings.attainment)
    for wanted in dict.fromkeys((promised, kept)):
        enough = [each for each in found if each.kept >= wanted]
        best = min(enough, key=lambda each: each.gpu_hours, default=None)
        print(f"   document, at least {wanted:.3f}: {best or 'never'}", flush=True)
    return EqualPromiseComparison(promised, hours, found)


def compare_all(mode: str, compared: Sequence[EqualPromiseComparison]) -> None:
    """Print the cheapest combination that suffices in all scenarios."""
    best: tuple[float, Sequence[TunedRun]] | None = None
    for same in zip(*(each.document for each in compared), strict=True):
        suffices = all(one.kept >= each.wanted for one, each in zip(same, compared, strict=True))
        hours = sum(one.gpu_hours for one in same)
        if suffices and (best is None or hours < best[0]):
            best = hours, same
    print(f"all {mode}: ours {sum(each.gpu_hours for each in compared):.2f} GPU h, document:")
    if best is None:
        print("   no setting of all these suffices everywhere")
        return
    print(f"   {best[0]:.2f} GPU h with one setting everywhere:")
    for one in best[1]:
        print(f"   {one}")


def run_of(scenario: Scenario, settings: DeploymentSettings) -> PlannerRun:
    begin = scenario.begin + (3 if settings.mode == "agg" else 0)
    course = ReplayCourse(
        fleet=fleet_of(settings.mode),
        replicas=dict.fromkeys(scaled_roles(settings), begin),
        until_s=scenario.hours * 3600.0,
    )
    return PlannerRun(settings, build_deployment(settings, 0.0), course)


def print_rows(
    scenario: Scenario,
    requests: Sequence[SimulatedRequest],
    mode: DeploymentMode,
    given: argparse.Namespace,
) -> EqualPromiseComparison | None:
    """Print all configurations, one a line, or the comparison."""
    needed = needed_of(requests, mode, scenario.ttft_ms)
    least = least_of(needed)
    print(f"   least {least:.2f} GPU h:", {str(k): v for k, v in needed.items()})
    if given.equal_promise:
        return compare_scenario(scenario, requests, mode, needed)
    print(HEAD)
    for label, settings in configurations(mode, given.interval, scenario.ttft_ms).items():
        if given.only and given.only not in label:
            continue
        begun = process_time()
        found = run_of(scenario, settings).run_course(fresh(requests), least)
        print(row(label, found), f"{process_time() - begun:.0f}s", flush=True)
    return None


def main() -> int:
    given = _parser().parse_args()
    known = scenarios(given.trace)
    compared: dict[str, list[EqualPromiseComparison]] = {mode: [] for mode in given.mode}
    for name in given.scenario or known:
        hours = min(known[name].hours, given.minutes / 60.0)
        scenario = known[name]._replace(hours=hours)
        requests = scenario.requests(hours * 3600.0)
        for mode in given.mode:
            print(f"{name} {mode}: {len(requests)} requests", flush=True)
            found = print_rows(scenario, requests, mode, given)
            compared[mode] += [] if found is None else [found]
    for mode, of_mode in compared.items():
        if len(of_mode) > 1:
            compare_all(mode, of_mode)
    return 0


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("--scenario", action="append")
    result.add_argument("--mode", nargs="+", default=["disagg", "agg"])
    result.add_argument("--interval", type=float, nargs="+", default=[60.0, 180.0])
    result.add_argument("--minutes", type=float, default=1e9)
    result.add_argument("--trace", type=Path, help="Mooncake JSONL, for the scenario `burst`")
    result.add_argument("--only", help="configurations whose name contains this")
    result.add_argument("--equal-promise", action="store_true", help="see above")
    return result


if __name__ == "__main__":
    sys.exit(main())
