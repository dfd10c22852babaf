"""An hour of overload in virtual time, with and without limits: tables, and a plot.

    python scripts/bench/overload.py [--minutes 60] [--seed 1] [--svg docs/overload.svg]
    python scripts/bench/overload.py --tuning --minutes 12

The fleet is simulated, the selector is the real one (tests/simulation/overload.py).  First the
capacity is measured, then half as much again is offered.  --tuning compares settings.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.bench.line_plot import Axis, Panel, Points, svg  # noqa: E402
from select_service.core.admission.thresholds import BusyThresholds  # noqa: E402
from select_service.core.decide.router_config import POLICY_NAMES  # noqa: E402
from tests.simulation.overload import World, capacity  # noqa: E402
from tests.simulation.overload_record import WARM_MINUTES, Figures, Record, figures  # noqa: E402
from tests.simulation.overload_rules import OVERLOAD, SCENARIOS, Fleet, Rules  # noqa: E402
from tests.simulation.overload_traffic import TIERS  # noqa: E402

CAPACITY_MINUTES = 20
TUNED = {
    **{
        f"{blocks:g} of the blocks, {tokens} tokens": Rules(BusyThresholds(blocks, tokens))
        for blocks, tokens in ((0.5, 5000), (0.7, 5000), (0.85, 10_000), (0.95, 20_000))
    },
    "no limit of blocks, 2000 tokens": Rules(BusyThresholds(None, 2000)),
    "no limit of blocks, 8000 tokens": Rules(BusyThresholds(None, 8000)),
    "no limit of blocks, 40000 tokens": Rules(BusyThresholds(None, 40_000)),
    **{f"queue, {frac:g} batches": Rules(queue_frac=frac) for frac in (1.0, 4.0, 16.0)},
    "queue, 4 batches, 30 s": Rules(queue_frac=4.0, queue_s=30.0),
    "queue, 4 batches; 0.85 of the blocks": Rules(BusyThresholds(0.85, None), queue_frac=4.0),
}


def run(rules: Rules, per_s: float, minutes: int, seed: int) -> tuple[World, Record]:
    world = World(Fleet(), rules, seed)
    record = world.run_open(per_s, 60.0 * minutes)
    world.selector.check_invariants()
    assert len(world.selector.held) == world.open == 0
    return world, record


def print_head() -> None:
    print(
        "| limits | answers/s | of capacity | attempts/s | gave up/s | wait p50, s | p99, s"
        " | max, s | queued p99, s | served: "
        + " / ".join(TIERS)
        + ", % | preemptions/min | load cv | wave | shed, % of time (changes) |"
    )
    print("|---|" + "---|" * 13, flush=True)


def print_row(name: str, found: Figures, record: Record, at_best: float) -> None:
    served = " / ".join(f"{100 * share:.0f}" for share in found.served.values())
    cells = [
        name,
        f"{found.answers_per_s:.2f}",
        f"{100 * found.answers_per_s / at_best:.0f} %",
        f"{found.attempts_per_s:.1f}",
        f"{found.timed_out_per_s:.2f}",
        f"{found.wait_p50_s:.2f}",
        f"{found.wait_p99_s:.2f}",
        f"{found.wait_max_s:.1f}",
        f"{found.queued_p99_s:.1f}",
        served,
        f"{record.preemptions / len(record.minutes):.0f}",
        f"{found.load_cv:.2f}",
        f"{found.wave:.2f}",
        f"{100 * found.shed_share:.0f} ({found.shed_changes})",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def panels(records: Mapping[str, Record], at_best: float, minutes: int) -> list[Panel]:
    """Throughput and waits of all runs, then the refusals of each limited one."""
    axis = Axis(0, minutes, range(0, minutes + 1, 10), "min")
    cut = {name: record.minutes[:minutes] for name, record in records.items()}
    level = ("capacity", at_best)
    goodput = {name: by_minute([m.answers / 60 for m in found]) for name, found in cut.items()}
    waits = {name: by_minute([m.wait_p99_s for m in found]) for name, found in cut.items()}
    made = [
        Panel("Answers/s", goodput, axis, level=level),
        Panel("Wait p99, s", waits, axis, is_log=True),
    ]
    for name, found in cut.items():
        if name != "nothing":
            lines = {tier: by_minute([m.refused[tier] / 60 for m in found]) for tier in TIERS}
            made.append(Panel(f"Refused/s: {name}", lines, axis))
    return made


def by_minute(values: Sequence[float]) -> Points:
    """One value per minute, in the middle of each."""
    return [(minute + 0.5, value) for minute, value in enumerate(values)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--policy", choices=POLICY_NAMES, default="reference", help="the tables' one"
    )
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--tuning", action="store_true")
    options = parser.parse_args()

    at_best = capacity(Fleet(), options.seed, CAPACITY_MINUTES, options.policy)
    print(f"capacity {at_best:.2f} answers/s, offered {OVERLOAD * at_best:.2f} requests/s")
    print_head()
    records = {}
    for name, rules in (TUNED if options.tuning else SCENARIOS).items():
        begin = time.monotonic()
        _, record = run(
            rules._replace(policy=options.policy), OVERLOAD * at_best, options.minutes, options.seed
        )
        found = figures(record, WARM_MINUTES, options.minutes)
        print_row(name, found, record, at_best)
        print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
        records[name] = record
    if options.svg:
        options.svg.write_text(svg(panels(records, at_best, options.minutes)))


if __name__ == "__main__":
    main()
