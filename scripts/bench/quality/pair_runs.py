"""Prefill and decode apart: the core's choice of pairs next to other rules, in virtual time.

    python -m scripts.bench.quality.pair_runs --mooncake FILE --json pairs.json
    python -m scripts.bench.quality.pair_runs --mooncake FILE --goodput

16 ranks, 8 of them for prefill, evenly over hosts of four with one link of 100 Gb/s; ranks for
decode can prefill. `mixed` is the policy `work` with
the same 16 ranks together.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

from scripts.bench.quality import quality_report
from scripts.bench.quality.knowledge_workloads import ENGINE
from scripts.bench.quality.leg_rules import LEG_RULES, make_leg_router
from scripts.bench.quality.quality_figures import (
    Results,
    RunKey,
    RunOutcome,
    compute_outcome,
    compute_ratio,
    routers_of,
)
from scripts.bench.quality.quality_runs import SESSION_CAPACITY, WorkloadCase, make_cases
from select_service.schemas.pairs import LocalRule
from select_service.sim.engine.core_router import (
    REFERENCE,
    USUAL,
    CoreRouter,
    CoreScene,
    RankRegistration,
)
from select_service.sim.engine.highest_rate import find_highest_rate
from select_service.sim.engine.pair_fleet import PairFleet, split_fleet
from select_service.sim.engine.pair_world import WORK, CorePairRouter, PairWorld
from select_service.sim.engine.replay_world import ReplayWorld
from select_service.sim.engine.service_goal import GOAL_SHARE

FLEET, PREFILLS = (ENGINE,) * 16, 8
EVENT_DELAY_S = 0.01
REQUESTS = 3000
GOODPUT_STEP = 1.05
BASE, MIXED = "pairs", "mixed"
WORKLOADS = (
    *("conv", "synthetic", "tenants, H100", "siblings", "longshort", "agentic", "docqa", "rlasync"),
)
RATES = {name: 2 * SESSION_CAPACITY[name] for name in WORKLOADS}
"""Requests per second of load 1: twice those of eight such ranks."""


def _ignore_hosts(facts: RankRegistration) -> RankRegistration:
    assert facts.kv_transfer is not None
    facts.kv_transfer.host = None
    return facts


def _ignore_transfers(facts: RankRegistration) -> RankRegistration:
    assert facts.kv_transfer is not None
    facts.kv_transfer.link_gbps = 1e6
    return facts


def _ignore_speeds(facts: RankRegistration) -> RankRegistration:
    assert facts.kv_transfer is not None
    facts.kv_transfer.link_gbps = None
    return facts


DECLARED = {
    BASE: lambda facts: facts,
    "pairs, topology ignored": _ignore_hosts,
    "pairs, transfer ignored": _ignore_transfers,
    "pairs, transfer unknown": _ignore_speeds,
}
"""Changes to the registrations of ranks, by rule."""
RULES = (BASE, MIXED, *list(DECLARED)[1:], "pairs, always remote", "conditional", "SMG", *LEG_RULES)


def make_router(rule: str, pairs: PairFleet, scene: CoreScene) -> CorePairRouter:
    """Return the router of a rule.  Raises KeyError for unknown names."""
    if rule == "conditional":
        return CorePairRouter(scene, REFERENCE)
    if rule == "SMG" or rule in LEG_RULES:
        return make_leg_router(rule, scene, pairs)
    local: LocalRule = "auto"
    if rule == "pairs, always remote":
        rule, local = BASE, "never"
    facts = tuple(map(DECLARED[rule], scene.ranks))
    return CorePairRouter(scene._replace(ranks=facts), WORK, local=local)


def run_rule(rule: str, case: WorkloadCase, seed: int, per_s: float) -> RunOutcome:
    """Return the outcome of a run.  per_s: requests per second"""
    workload = case.workload(seed)
    sessions_per_s = per_s / workload.mean_session_length
    scene = CoreScene(FLEET, workload.n_blocks, seed)
    if rule == MIXED:
        world = ReplayWorld(workload, FLEET, EVENT_DELAY_S)
        return compute_outcome(
            world.run_open(CoreRouter(scene, WORK, USUAL), sessions_per_s), FLEET
        )
    pairs = split_fleet(FLEET, PREFILLS)
    world = PairWorld(workload, pairs, EVENT_DELAY_S)
    chooser = make_router(rule, pairs, scene._replace(ranks=pairs.declare_ranks()))
    chooser.join_world(world)
    return compute_outcome(world.run_pairs(chooser, sessions_per_s), FLEET)


def _measure_goodput(options: argparse.Namespace, cases: dict[str, WorkloadCase]) -> None:
    """Print the highest load of each rule and workload, the mean over seeds."""
    print(f"| goodput | {' | '.join(options.workloads)} |")
    print("|---" * (1 + len(options.workloads)) + "|")
    for rule in options.rules:
        cells = []
        for name in options.workloads:
            found = [
                find_highest_rate(
                    partial(_meets, rule, cases[name], seed), RATES[name], GOODPUT_STEP
                )
                for seed in options.seeds
            ]
            rate = sum(found) / len(found)
            cells.append(f"{rate / RATES[name]:.2f} ({rate:.1f}/s)")
            print(rule, name, cells[-1], file=sys.stderr, flush=True)
        print(f"| {rule} | {' | '.join(cells)} |", flush=True)


def _meets(rule: str, case: WorkloadCase, seed: int, per_s: float) -> bool:
    return run_rule(rule, case, seed, per_s).objective_share >= GOAL_SHARE


def main() -> None:
    options = _parser().parse_args()
    cases = make_cases(options.mooncake, None, options.requests)
    options.workloads = [name for name in options.workloads if name in cases]
    if options.goodput:
        _measure_goodput(options, cases)
        return
    results = quality_report.from_json(options.json)
    runs = product(options.seeds, options.workloads, options.loads, options.rules)
    keys = [RunKey(name, load, seed, rule) for seed, name, load, rule in runs]
    for key in keys:
        if key not in results and not options.show:
            begin = time.process_time()
            rate = key.load * RATES[key.workload]
            results[key] = run_rule(key.chooser, cases[key.workload], key.seed, rate)
            options.json.write_text(quality_report.to_json(results))
            print(key, f"{time.process_time() - begin:.1f} s of CPU", file=sys.stderr, flush=True)
    print(_render_rules({key: results[key] for key in keys if key in results}, options.loads))


def _render_rules(results: Results, loads: Sequence[float]) -> str:
    """Return ratios to BASE: all metrics at the first load, the first token's at the others; then
    the first token's by workload at the first load.
    """
    first, rules = loads[0], routers_of(results)
    metrics = quality_report.METRICS
    head = [f"ratio to {BASE}", *(f"{name}, {first:g}" for name in metrics)]
    head += [f"TTFT mean, {load:g}" for load in loads[1:]]
    names = list(dict.fromkeys(key.workload for key in results))
    cells = {load: [(name, load) for name in names] for load in loads}
    rows = [[*head, *names], ["---"] * (len(head) + len(names))]
    for rule in rules:
        asked = [(first, metric) for metric in metrics.values()]
        asked += [(load, quality_report.MEAN) for load in loads[1:]]
        found = [compute_ratio(results, cells[load], rule, BASE, each) for load, each in asked]
        found += [
            compute_ratio(results, [cell], rule, BASE, quality_report.MEAN) for cell in cells[first]
        ]
        rows.append([rule, *(f"{each.mean:.2f}" for each in found)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.quality.pair_runs",
        description=__doc__,
        epilog=f"Rules: {', '.join(RULES)}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--mooncake", type=Path, metavar="FILE", help="conversation trace, for `conv`")
    add("--workloads", type=lambda text: text.split(":"), default=list(RATES), metavar="A:B")
    add("--rules", type=lambda text: text.split(":"), default=list(RULES), metavar="A:B")
    add("--loads", type=_numbers, default=(0.45, 1.0), metavar="X:Y", help="0.45:1")
    add("--seeds", type=lambda text: [int(each) for each in text.split(":")], default=[11, 12])
    add("--requests", type=int, default=REQUESTS, metavar="N", help="of a run")
    add("--goodput", action="store_true", help="search the highest load that meets the objective")
    add("--show", action="store_true", help="run nothing, show what --json has")
    add("--json", type=Path, default=Path("pairs.json"), metavar="FILE", help="read and written")
    return parser


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(":")))


if __name__ == "__main__":
    main()
