"""What the planner's decisions are worth: promises kept and GPU hours, against the least possible.

    python -m scripts.bench.planner_quality [--scenario NAME] [--mode agg] --trace FILE

Everything is simulated, and the same each time. Times that are printed are of the CPU.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from math import pi, sin
from pathlib import Path
from random import Random
from time import process_time
from typing import NamedTuple

from select_service.planner.assembling import deployment_of
from select_service.planner.core.inputs import Limits
from select_service.planner.core.settings import Settings, gpus_of, roles_of
from select_service.planner.reading import DOCUMENT
from select_service.planner.replay.engine import Request, Speed
from select_service.planner.replay.fleet import FleetOptions
from select_service.planner.replay.least import least_gpu_hours, least_replicas
from select_service.planner.replay.run import Course, Outcome, Run, promise_of
from select_service.planner.replay.traffic import made_requests, trace_requests

SEED = 12
LEAST_INTERVAL_S = 300.0
MOST = 16
SPEED = Speed(base_s=0.01, per_prefill_token_s=1.2e-4, per_kv_token_s=5e-8, per_request_s=2e-4)
BURST_S = (1500.0, 1800.0)
HEAD = f"{'':34}{'kept':>7}{'ttft':>7}{'itl':>7}{'GPU h':>8}{'/least':>7}{'rev/h':>6}"


class Scenario(NamedTuple):
    """Requests of a fleet; `begin`: replicas of a role at first, and three more if they do both."""

    requests: Callable[[float], list[Request]]
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


def _made(
    rate: Callable[[float], float], most: float, lengths: Callable[..., tuple[int, int, int]]
):
    def requests(until_s: float) -> list[Request]:
        return list(made_requests(rate, until_s=until_s, rate_max=most, lengths=lengths, seed=SEED))

    return requests


def ramp(peak: float) -> Callable[[float], float]:
    """10 % to 100 % in two hours, and back."""
    return lambda now: peak * (0.1 + 0.9 * max(0.0, 1.0 - abs(now - 7200.0) / 7200.0))


def waves(mean: float) -> Callable[[float], float]:
    return lambda now: mean * (1.0 + 0.4 * sin(2 * pi * now / 5400.0))


def noisy(mean: float) -> Callable[[float], float]:
    """Another rate each minute."""
    return lambda now: mean * Random(int(now // 60)).uniform(0.8, 1.2)


def conversation(path: Path) -> Callable[[float], list[Request]]:
    """The trace as it is, but three times as much for five minutes."""

    def requests(until_s: float) -> list[Request]:
        found = [each for each in trace_requests(path) if each.arrived_s < until_s]
        rng = Random(SEED)
        more = [
            Request(each.arrived_s + rng.uniform(0.0, 3.0), each.isl, each.osl, each.uncached)
            for each in found
            for _ in range(2)
            if BURST_S[0] <= each.arrived_s < BURST_S[1]
        ]
        return sorted([*found, *more], key=lambda each: each.arrived_s)

    return requests


def scenarios(trace: Path | None) -> dict[str, Scenario]:
    known = {
        "ramp": Scenario(_made(ramp(7.0), 7.0, normal), 4.0, 1),
        "bimodal": Scenario(_made(waves(8.0), 12.0, bimodal), 1.5, 5),
        "heavy": Scenario(_made(waves(10.0), 14.0, heavy_tailed), 1.5, 5),
        "plateau": Scenario(_made(noisy(10.0), 12.0, normal), 1.5, 5),
    }
    if trace is not None:
        known["burst"] = Scenario(conversation(trace), 3500.0 / 3600.0, 6, 10_000.0)
    return known


def settings_of(
    mode: str, interval: float, load: bool, ttft_ms: float, **given: object
) -> Settings:
    base = {
        "mode": mode,
        "ttft_ms": ttft_ms,
        "itl_ms": 80.0 if mode == "agg" else 40.0,
        "max_gpu_budget": MOST if mode == "agg" else 2 * MOST,
        "throughput_adjustment_interval_seconds": interval,
        "enable_load_scaling": load,
        "scale_interval_seconds": 5.0,
        **given,
    }
    return Settings(**base)


def fleet_of(mode: str) -> FleetOptions:
    roles = roles_of(Settings(mode=mode))
    chunk = 512 if mode == "agg" else 4096
    limits = Limits(max_num_batched_tokens=chunk, max_num_seqs=256, max_kv_tokens=500_000)
    return FleetOptions(
        roles=roles,
        speed=dict.fromkeys(roles, SPEED),
        limits=dict.fromkeys(roles, limits),
        startup_s=120.0,
    )


def fresh(requests: Sequence[Request]) -> Iterator[Request]:
    return (Request(each.arrived_s, each.isl, each.osl, each.uncached) for each in requests)


def least_of(requests: Sequence[Request], mode: str, ttft_ms: float) -> float:
    settings = settings_of(mode, 60.0, False, ttft_ms)
    options = fleet_of(mode)
    most = dict.fromkeys(options.roles, MOST)
    needed = least_replicas(
        requests, options, promise_of(settings), interval_s=LEAST_INTERVAL_S, most=most
    )
    print("   least", {str(k): v for k, v in needed.items()})
    gpus = {role: gpus_of(settings, role) for role in options.roles}
    least = dict.fromkeys(options.roles, 1)
    return least_gpu_hours(needed, gpus, interval_s=LEAST_INTERVAL_S, least=least)


def configurations(mode: str, intervals: Sequence[float], ttft_ms: float) -> dict[str, Settings]:
    found = {}
    for interval in intervals:
        for load in (False, True):
            with_load = " +load" if load else ""
            found[f"ours {interval:g}s{with_load}"] = settings_of(mode, interval, load, ttft_ms)
            document = {**DOCUMENT, "load_predictor": "kalman"}
            found[f"document {interval:g}s{with_load}"] = settings_of(
                mode, interval, load, ttft_ms, **document
            )
    return found


def row(name: str, found: Outcome) -> str:
    least = found.least_gpu_hours
    part = found.gpu_hours / least if least else 0.0
    return (
        f"{name:34}{found.attainment:7.3f}{found.attainment_ttft:7.3f}{found.attainment_itl:7.3f}"
        f"{found.gpu_hours:8.2f}{part:7.2f}{found.reversals_an_hour:6.1f}"
        f"  failed {found.failed}, over {found.over_budget_s:.0f} s"
        f", up {sum(found.scale_ups.values())}, down {sum(found.scale_downs.values())}"
        f", most {list(found.most_replicas.values())}"
    )


def main() -> int:
    given = _parser().parse_args()
    known = scenarios(given.trace)
    for name in given.scenario or known:
        scenario = known[name]
        until_s = min(scenario.hours * 60.0, given.minutes) * 60.0
        requests = scenario.requests(until_s)
        for mode in given.mode:
            begun = process_time()
            least = least_of(requests, mode, scenario.ttft_ms) if given.least else None
            print(f"{name} {mode}: {len(requests)} requests, least {least}")
            print(f"   {process_time() - begun:.0f} s")
            print(HEAD)
            for label, settings in configurations(mode, given.interval, scenario.ttft_ms).items():
                if given.only and given.only not in label:
                    continue
                begun = process_time()
                course = Course(
                    fleet=fleet_of(mode),
                    replicas=dict.fromkeys(
                        roles_of(settings), scenario.begin + (3 if mode == "agg" else 0)
                    ),
                    until_s=until_s,
                )
                run = Run(settings, deployment_of(settings, 0.0), course)
                print(
                    row(label, run.go(fresh(requests), least)),
                    f"{process_time() - begun:.0f}s",
                    flush=True,
                )
    return 0


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--scenario", action="append")
    result.add_argument("--mode", nargs="+", default=["disagg", "agg"])
    result.add_argument("--interval", type=float, nargs="+", default=[60.0, 180.0])
    result.add_argument("--minutes", type=float, default=1e9)
    result.add_argument("--trace", type=Path, help="Mooncake JSONL, for the scenario `burst`")
    result.add_argument("--only", help="configurations whose name contains this")
    result.add_argument("--no-least", dest="least", action="store_false")
    return result


if __name__ == "__main__":
    sys.exit(main())
