"""Soak run: three replicas with all features on, under repeated kills of a replica and an engine.

For scripts/soak:

    python -m tests.proofs.soak [--hours 6] [--period 60] [--clients 8]

One replica and one engine are killed per period, every minute by default.  The run prints a line
per period and a verdict; the exit status is 1 after any violation.  Violations are:

- a reservation that is lost, doubled or left over
- replicas that differ 45 s after the last fault
- a wrong value that is marked `exact`
- an unexpected answer
- memory that grows after the warm-up (the first hour, or the first third of a shorter run)
"""

import argparse
import itertools
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.proofs.soak_checks import (
    Faults,
    HoldingCheck,
    ValueCheck,
    memory_trend,
    requests_by_rank,
    rows_of_replica,
)
from tests.proofs.soak_clients import SoakClients
from tests.proofs.soak_fleet import DECODES, HYBRID, PREFILLS, SPARE, SoakFleet

WARM_UP_S = 3600.0
BATCHES, LOST_BATCHES = 6, 2
SHOWN_VIOLATIONS = 20
AT_REPLICA_KILL, AT_ENGINE_KILL, AT_ENGINE_RETURN, AT_EDIT, AT_CHECK = 0.1, 0.3, 0.55, 0.65, 0.8
"""Moments of the events in a period, as fractions of its length."""
COLUMNS = (
    "period     s  MiB of the replicas  booked  pairs  ended  settled    exact  others  wrong  bad"
)


class SoakRun:
    """Fleet, clients and checks of a run."""

    def __init__(self, fleet: SoakFleet, clients: SoakClients, period_s: float) -> None:
        self._fleet, self._clients, self._period_s = fleet, clients, period_s
        self.faults = Faults()
        self.holding = HoldingCheck(fleet, clients, self.faults)
        self.values = ValueCheck(fleet)
        self.memory: list[tuple[float, float]] = []
        self.begin = time.monotonic()
        self._victims = itertools.cycle(fleet.replicas[1:])
        self._engines = itertools.cycle(
            each for group in zip(HYBRID, PREFILLS, DECODES, strict=True) for each in group
        )

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.begin

    @property
    def violations(self) -> list[str]:
        return [*self.holding.violations, *self.values.violations, *self._clients.faults]

    def play_period(self, number: int) -> None:
        """Play one period with its faults, and compare replicas and clients at the end."""
        fleet, begin = self._fleet, time.monotonic()

        def wait_for(moment: float) -> None:
            time.sleep(max(0.0, begin + moment * self._period_s - time.monotonic()))

        self._clients.resume()
        for engine in fleet.hybrid.values():
            engine.publish("send", BATCHES)
        wait_for(AT_REPLICA_KILL)
        victim = next(self._victims)
        self.faults.note_kill(victim)
        victim.kill()
        victim.start()
        wait_for(AT_ENGINE_KILL)
        self._kill_engine(wait_for)
        wait_for(AT_EDIT)
        fleet.write_workers(has_spare=number % 2 == 0)
        if number % 2:
            self.faults.note_lost_worker(SPARE, "with_worker")
        wait_for(AT_CHECK)
        self._check(number)
        wait_for(1.0)

    def _kill_engine(self, wait_for: Callable[[float], None]) -> None:
        worker_id = next(self._engines)
        self.faults.note_lost_worker(worker_id, "with_engine")
        self._fleet.kill_engine(worker_id)
        wait_for(AT_ENGINE_RETURN)
        self._fleet.restart_engine(worker_id)
        self.faults.note_lost_worker(worker_id, "with_engine")
        if (engine := self._fleet.hybrid.get(worker_id)) is not None:
            engine.publish("send", BATCHES)
            engine.publish("lose", LOST_BATCHES)
            engine.process.order("await")
            engine.publish("send", BATCHES)

    def _check(self, number: int) -> None:
        self._clients.pause()
        settled_s = self.holding.run()
        self.values.run()
        rss = [replica.memory_mib() for replica in self._fleet.replicas]
        self.memory.append((self.elapsed_s, rss[0]))
        counts, values = self._clients.counts, self.values.counts
        others = sum(values.values()) - values["exact"] - values["wrong"]
        shown = " ".join(f"{mib:6.1f}" for mib in rss)
        print(
            f"{number:6}{self.elapsed_s:6.0f} {shown} {counts['booked']:7}{counts['pairs']:7}"
            f"{counts['ended']:7}{settled_s:9.1f}{values['exact']:9}{others:8}{values['wrong']:7}"
            f"{len(self.violations):5}",
            flush=True,
        )

    def end_all(self) -> None:
        """End every reservation, and record a violation if any remains."""
        self._clients.stop()
        for name in list(self._clients.held):
            if not any(replica.free(name) == 200 for replica in self._fleet.replicas):
                cause = self.faults.explain(self._clients.held[name])
                if cause is None:
                    self.holding.violations.append(f"unknown at the end: {name}")
            del self._clients.held[name]
        until = time.monotonic() + 45.0
        while any(self._rest(n) for n in range(len(self._fleet.replicas))):
            if time.monotonic() > until:
                rest = [self._rest(n) for n in range(len(self._fleet.replicas))]
                self.holding.violations.append(f"left after all ends: {rest}")
                break
            time.sleep(0.2)

    def _rest(self, number: int) -> list[object]:
        replica = self._fleet.replicas[number]
        loads = requests_by_rank(replica)
        return [*rows_of_replica(replica), *(rank for rank, count in loads.items() if count)]


def verdict(run: SoakRun, clients: SoakClients, seconds: float) -> int:
    """Print the result, and return the exit status."""
    violations, counts, values = run.violations, clients.counts, run.values.counts
    trend = memory_trend(run.memory, min(WARM_UP_S, seconds / 3))
    if trend is None:
        print("memory: too few periods for a trend")
    else:
        print(
            f"memory of the replica that lived on: {trend.begin_mib:.1f} MiB after the warm-up, "
            f"{trend.slope_mib_h:+.1f} MiB/h, {trend.growth_mib:+.1f} MiB until the end"
        )
        if not trend.is_flat:
            violations.append(f"memory grows: {trend}")
    for name in ("booked", "pairs", "ended"):
        if not counts[name]:
            violations.append(f"nothing was {name}: the run shows nothing")
    if not values["exact"]:
        violations.append("no value was exact: the run shows nothing")
    print(f"operations: {json.dumps(counts, sort_keys=True)}")
    print(f"values: {json.dumps(values, sort_keys=True)}")
    print(f"ended by faults: {json.dumps(run.holding.explained, sort_keys=True)}")
    for text in violations[:SHOWN_VIOLATIONS]:
        print(f"violation: {text}")
    print(f"verdict: {len(violations)} violations in {run.elapsed_s:.0f} s")
    return int(bool(violations))


def play(folder: Path, seconds: float, period_s: float, count: int) -> int:
    """Run periods for `seconds`, at least one, and return the exit status."""
    with SoakFleet(folder) as fleet:
        clients = SoakClients(fleet.replicas, count)
        try:
            run = SoakRun(fleet, clients, period_s)
            print(COLUMNS, flush=True)
            for number in itertools.count(1):
                run.play_period(number)
                if run.elapsed_s + period_s > seconds:
                    break
            run.end_all()
        finally:
            clients.stop()
        return verdict(run, clients, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hours", type=float, default=6.0, help="duration (default 6)")
    parser.add_argument(
        "--period", type=float, default=60.0, help="seconds between two kills (default 60)"
    )
    parser.add_argument("--clients", type=int, default=8, help="number of threads (default 8)")
    given = parser.parse_args()
    # SIGTERM must run the `finally` blocks, or the replicas would outlive the run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="soak") as folder:
        return play(Path(folder), given.hours * 3600, given.period, given.clients)


if __name__ == "__main__":
    sys.exit(main())
