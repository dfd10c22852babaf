"""Table of a fleet's figures under overload, for each combination of limits.

    python -m tests.simulation [--policy reference] [--minutes 60]

docs/measurements/quality.md has the results; an hour takes some minutes per row.
"""

import argparse

from tests.simulation.overload import World, capacity
from tests.simulation.overload_record import WARM_MINUTES, figures
from tests.simulation.overload_rules import OVERLOAD, SCENARIOS, Fleet
from tests.simulation.overload_traffic import TIERS

SEED = 1
CAPACITY_MINUTES = 20


def main() -> None:
    """Print a row per combination of limits."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--policy", default="reference", help="default reference")
    parser.add_argument("--minutes", type=int, default=60, help="virtual time (default 60)")
    given = parser.parse_args()
    fleet = Fleet()
    most = capacity(fleet, SEED, CAPACITY_MINUTES, given.policy)
    tiers = " / ".join(TIERS)
    print(f"capacity {most:.2f} answers/s")
    print(f"| limits | answers/s | of capacity | gave up/s | p50, s | p99, s | {tiers}, % |")
    print("|---|---|---|---|---|---|---|")
    for name, rules in SCENARIOS.items():
        world = World(fleet, rules._replace(policy=given.policy), SEED)
        record = world.run_open(OVERLOAD * most, 60.0 * given.minutes)
        found = figures(record, WARM_MINUTES, given.minutes)
        served = " / ".join(f"{100 * found.served[tier]:.0f}" for tier in TIERS)
        print(
            f"| {name} | {found.answers_per_s:.2f} | {100 * found.answers_per_s / most:.0f} % | "
            f"{found.timed_out_per_s:.2f} | {found.wait_p50_s:.2f} | {found.wait_p99_s:.2f} | "
            f"{served} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
