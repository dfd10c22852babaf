"""Checks of a soak run: reservations of replicas against those of clients, values, and memory."""

import time
from collections import Counter
from typing import Any, NamedTuple

from tests.process.killed_engine_scenes import BLOCK_SIZE, LIVES, prompts_of
from tests.process.replica_processes import Replica
from tests.proofs.soak_clients import EndedReservation, HeldReservation, SoakClients
from tests.proofs.soak_fleet import HYBRID, HYBRID_MODEL, SoakFleet, SoakReplica

SETTLE_S_MAX = 45.0
"""Time in s after the last fault within which docs/explanation/replication.md promises agreement.
"""
RACE_S = 1.0
"""Time in s around an answer in which a kill of the replica may prevent its publication."""
DISCOVERY_S = 5.0
READ_S_MAX = 30.0
GROWTH_MIB_MAX, GROWTH_SHARE_MAX = 8.0, 0.03

Row = tuple[str, str | None, int, int]
"""Reservation id, leg, worker and rank."""


class Faults:
    """Kills and removals so far, which explain reservations that no client ended."""

    def __init__(self) -> None:
        self._kills: list[tuple[SoakReplica, float]] = []
        self._losses: list[tuple[int, float, str]] = []

    def note_kill(self, replica: SoakReplica) -> None:
        self._kills.append((replica, time.monotonic()))

    def note_lost_worker(self, worker_id: int, cause: str) -> None:
        """Record a lost worker; `cause` is `with_engine` or `with_worker`."""
        self._losses.append((worker_id, time.monotonic(), cause))

    def is_unpublished(self, replica: SoakReplica | None, at: float) -> bool:
        """Return whether the replica was killed close to its answer."""
        return any(
            replica is each and -RACE_S < killed_at - at < RACE_S for each, killed_at in self._kills
        )

    def explain(self, held: HeldReservation) -> str | None:
        """Return why a reservation may be gone; None means that the reservation is lost."""
        for worker_id, at, cause in self._losses:
            if worker_id in held.workers and at > held.booked_at - DISCOVERY_S:
                return cause
        return "unpublished" if self.is_unpublished(held.booked_by, held.booked_at) else None


def rows_of_replica(replica: Replica) -> list[Row]:
    """Return all rows of reservations, with one row per leg."""
    found: list[Row] = []
    after = ""
    while after is not None:
        query = f"limit=1000&separate_legs=true{f'&after={after}' if after else ''}"
        status, page = replica.get(f"/reservations?{query}")
        assert status == 200, page
        for row in page["reservations"]:
            names = row["reservation_id"], row.get("leg")
            found.append((*names, row["worker_id"], row["dp_rank"]))
        after = page["next"]
    return found


def requests_by_rank(replica: Replica) -> dict[tuple[str, int, int], int]:
    parts = replica.get("/loads")[1]
    return {
        (part["model_name"], row["worker_id"], row["dp_rank"]): row["active_requests"]
        for part in parts
        for row in part["loads"]
    }


class HoldingCheck:
    """Comparison of the rows of all replicas with the reservations that paused clients hold."""

    def __init__(self, fleet: SoakFleet, clients: SoakClients, faults: Faults) -> None:
        self._fleet, self._clients, self._faults = fleet, clients, faults
        self.explained, self.violations = Counter[str](), list[str]()

    def run(self) -> float:
        """Return the seconds until replicas and clients agreed, or more than SETTLE_S_MAX."""
        begin = time.monotonic()
        while True:
            rows = [rows_of_replica(replica) for replica in self._fleet.replicas]
            found = self._differences(rows)
            took = time.monotonic() - begin
            if not found or took > SETTLE_S_MAX:
                break
            time.sleep(0.2)
        self.violations += found
        self._violate_by_ends()
        self._carry_on(rows)
        return took

    def _differences(self, rows: list[list[Row]]) -> list[str]:
        held, found = self._clients.held, list[str]()
        for number, own in enumerate(rows):
            ids = Counter((name, leg) for name, leg, _, _ in own)
            found += [f"doubled at {number}: {key}" for key, count in ids.items() if count > 1]
            names = {row[0] for row in own}
            for name in held.keys() - names:
                if self._faults.explain(held[name]) is None:
                    found.append(f"lost at {number}: {held[name]}")
            found += [
                f"left at {number}: {each}"
                for each in sorted(names - held.keys())
                if not self._is_unsure(each)
            ]
        if any(set(own) != set(rows[0]) for own in rows):
            found.append(f"replicas differ: {_first_difference(rows)}")
        loads = [requests_by_rank(replica) for replica in self._fleet.replicas]
        if any(load != loads[0] for load in loads):
            found.append(f"loads differ: {loads}")
        return found

    def _is_unsure(self, name: str) -> bool:
        """Return whether this reservation may have ended without a reliable answer.

        The end had no answer, or a dying replica answered.
        """
        ended = self._clients.ended.get(name)
        if ended is None:  # a booking that was refused in the end
            return True
        return not ended.is_sure or self._faults.is_unpublished(ended.ended_by, ended.ended_at)

    def _violate_by_ends(self) -> None:
        """Record a violation for every ended reservation that no replica knew."""
        for ended in self._clients.ended.values():
            if ended.ended_by is None:
                cause = self._cause_of_unknown(ended)
                if cause is None:
                    self.violations.append(f"unknown at its end: {ended.held}")
                else:
                    self.explained[cause] += 1

    def _cause_of_unknown(self, ended: EndedReservation) -> str | None:
        cause = self._faults.explain(ended.held)
        return cause or (None if ended.is_sure else "unanswered")

    def _carry_on(self, rows: list[list[Row]]) -> None:
        """Adopt the replicas' state: drop lost, end leftover and update moved reservations."""
        clients, workers = self._clients, dict[str, list[int]]()
        for name, _, worker_id, _ in rows[0]:
            workers.setdefault(name, []).append(worker_id)
        for name in list(clients.held):
            if name in workers:
                clients.held[name].workers = tuple(workers[name])
            else:
                cause = self._faults.explain(clients.held.pop(name))
                self.explained[cause or "lost"] += 1
        for name in workers.keys() - clients.held.keys():
            self.explained["left"] += 1
            self._fleet.elder.free(name)
        clients.ended.clear()


def _first_difference(rows: list[list[Row]]) -> tuple[list[Row], ...]:
    common = set.intersection(*map(set, rows))
    return tuple(sorted(set(own) - common, key=str)[:3] for own in rows)


class ValueCheck:
    """Comparison of the replicas' overlaps of hybrid ranks with the caches of the engines.

    counts: numbers of values by certainty, and of `wrong` values among the `exact` ones
    """

    def __init__(self, fleet: SoakFleet) -> None:
        self._fleet, self.counts = fleet, Counter[str]()
        self._prompts = [prompt for life in LIVES for prompt in prompts_of(life)[::2]]
        self.violations = list[str]()

    def run(self) -> None:
        self._wait_until_read()
        for replica in self._fleet.replicas:
            states = {each: self._state(replica, each).get("state", "absent") for each in HYBRID}
            for prompt in self._prompts:
                query = {"model_name": HYBRID_MODEL, "token_ids": prompt}
                for row in replica.post("/overlap_scores", query)[1]["workers"]:
                    self._compare(row, prompt, states[row["worker_id"]])

    def _compare(self, row: dict[str, Any], prompt: list[int], state: str) -> None:
        engine = self._fleet.hybrid[row["worker_id"]]
        is_known = "reusable_tokens" in row
        tokens = row["reusable_tokens"] if is_known else row["device_blocks"] * BLOCK_SIZE
        certainty = row.get("certainty", "exact" if state == "connected" else "flagged")
        self.counts[certainty] += 1
        truth = engine.truth(prompt)
        if certainty == "exact" and tokens != truth:
            self.counts["wrong"] += 1
            self.violations.append(f"worker {row['worker_id']}: {tokens} tokens, truth {truth}")

    def _wait_until_read(self) -> None:
        until = time.monotonic() + READ_S_MAX
        for replica in self._fleet.replicas:
            for worker_id, engine in self._fleet.hybrid.items():
                while time.monotonic() < until:
                    status = self._state(replica, worker_id)
                    is_read = status.get("last_sequence") == engine.process.last_seq
                    if is_read and status["state"] == "connected":
                        break
                    time.sleep(0.05)

    def _state(self, replica: SoakReplica, worker_id: int) -> dict[str, Any]:
        """Return the state of the listener; empty until a new process has read the workers."""
        answer = replica.get(f"/workers/{worker_id}")[1]
        state: dict[str, Any] = answer.get("kv_events", {}).get("0", {})
        return state


class MemoryTrend(NamedTuple):
    """Least-squares line through the samples after the warm-up."""

    slope_mib_h: float
    growth_mib: float
    begin_mib: float

    @property
    def is_flat(self) -> bool:
        return self.growth_mib <= max(GROWTH_MIB_MAX, GROWTH_SHARE_MAX * self.begin_mib)


def memory_trend(samples: list[tuple[float, float]], warm_up_s: float) -> MemoryTrend | None:
    """Return the trend of (seconds, MiB) samples; None means fewer than three samples."""
    used = [(at, mib) for at, mib in samples if at >= warm_up_s]
    if len(used) < 3:
        return None
    mean_at = sum(at for at, _ in used) / len(used)
    mean_mib = sum(mib for _, mib in used) / len(used)
    spread = sum((at - mean_at) ** 2 for at, _ in used)
    slope = sum((at - mean_at) * (mib - mean_mib) for at, mib in used) / spread
    begin, end = used[0][0], used[-1][0]
    return MemoryTrend(slope * 3600, slope * (end - begin), mean_mib + slope * (begin - mean_at))
