"""Naive twin of the admission stage: workers, reservations, thresholds, tiers and the queue.

The twin recomputes every sum from lists and sets at each call. Where several ranks are equally
good, the test passes the rank that the product chose. The twin checks that this rank is among the
cheapest.
"""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile

from tests.models.cost_model import (
    Query,
    RankState,
    cached_tokens,
    cost,
    effective_prefill_tokens,
    weighted_cost,
)
from tests.models.selector_model import ModelWorker, SelectorModel
from tests.models.waiting import Waiter, WaitingModel, policy_of

TIERS = ("premium", "standard", "best_effort")
MEDIA = ("gpu", "cpu", "disk")


class Weights:
    """Default scheduling parameters of the reference."""

    host_cache_hit_weight = 0.75
    disk_cache_hit_weight = 0.25
    overlap_score_credit = 1.0
    overlap_score_credit_decay = 0.0
    prefill_load_scale = 1.0
    decode_active_request_weight = 0.0
    track_prefill_tokens = True
    track_active_blocks = True


@dataclass
class Machine(ModelWorker):
    """Worker with the facts that admission needs."""

    batch_tokens: int | None = None
    kv_blocks: int | None = None
    taints: frozenset[str] = frozenset()
    url: str | None = None
    queueing: bool = False

    @property
    def complete(self):
        return super().complete and (self.batch_tokens is not None or not self.queueing)


class Refused(Exception):
    """Refusal of a request; the argument is the name of the error."""


class AdmissionModel(SelectorModel):
    def __init__(self, document, *, ttl_s, stale_s, turn_max, timeout_s=0.0, bounds=None):
        """Start without workers.

        document: policy classes; None means that queueing is off
        bounds: most waiting requests and most waiting prompt tokens
        """
        super().__init__(ttl_s)
        self.document = document
        self.line = WaitingModel(document or {"policy_classes": []})
        self.stale_s, self.turn_max, self.timeout_s = stale_s, turn_max, timeout_s
        self.burst_of_rank = 4096
        self.bounds = bounds or (math.inf, math.inf)
        self.default = (None, None)
        self.own_thresholds: dict[str, tuple[float | None, int | None]] = {}
        self.shed_from: str | None = None
        self.health: dict[tuple[int, int], float] = {}
        self.stored: dict[tuple[int, int], dict[str, set[tuple[int, ...]]]] = {}
        self.heard: dict[tuple[int, int], tuple[float | None, float]] = {}
        self.believed: dict[tuple[int, int], float] = {}
        self.stale: set[tuple[int, int]] = set()
        """Ranks with a usage report that was too old at the last look."""
        self.tally = Counter()
        self.seen: dict[tuple[str, str], tuple] = {}
        self.measured: dict[tuple[str, str], list[tuple]] = {}
        self.numbers = 0
        self.log: list[tuple[str, str]] = []
        self.told: dict[str, tuple] = {}

    # --- workers and reported usage

    def put(self, worker_id, worker):
        old = self.workers.get(worker_id)
        before = None if old is None else (old.lifecycle, old.key, old.block_size)
        super().put(worker_id, worker)
        continued = before == ("schedulable", worker.key, worker.block_size)
        continued &= worker.lifecycle == "schedulable"
        self.forget(self.stored, worker_id, worker.dp_size if continued else 0)
        self.forget(self.believed, worker_id, worker.dp_size if continued else 0)
        self.forget(self.health, worker_id, worker.dp_size if continued else 0)
        if old is None or old.url != worker.url:
            self.forget(self.heard, worker_id, 0)
            self.forget(self.believed, worker_id, 0)
        elif worker.lifecycle == "schedulable" and worker.url:
            for rank in [rank for rank in self.ranks(worker.key) if rank[0] == worker_id]:
                usage, _ = self.heard.get(rank, (None, 0.0))
                if usage is not None and rank not in self.stale:
                    self.believed[rank] = usage

    def delete_worker(self, worker_id):
        super().delete_worker(worker_id)
        for what in (self.stored, self.believed, self.heard, self.health):
            self.forget(what, worker_id, 0)

    def forget(self, what, worker_id, first_dp_rank):
        for rank in [r for r in what if r[0] == worker_id and r[1] >= first_dp_rank]:
            del what[rank]

    def ranks(self, key):
        return {(i, d) for i, w in self.schedulable(key).items() for d in range(w.dp_size)}

    def open_ranks(self, key):
        """Return the ranks that may be chosen."""
        return {rank for rank in self.ranks(key) if self.health.get(rank, 1.0)}

    def block_size(self, key):
        return next(iter(self.schedulable(key).values())).block_size

    def store(self, rank, medium, path):
        held = self.stored.setdefault(rank, {name: set() for name in MEDIA})
        held[medium] |= {path[: n + 1] for n in range(len(path))}

    def drop(self, rank, medium, path):
        if rank in self.stored:
            self.stored[rank][medium].discard(path)

    def read_engine(self, worker_id, usages, now):
        worker = self.workers[worker_id]
        for dp_rank, usage in usages.items():
            if dp_rank < worker.dp_size:
                self.heard[worker_id, dp_rank] = (usage, now)
        self.look([rank for rank in self.heard if rank[0] == worker_id], now)

    def look(self, ranks, now):
        """Use the reported usage of these ranks unless the report is too old."""
        for rank in ranks:
            usage, at = self.heard.get(rank, (None, 0.0))
            self.believed.pop(rank, None)
            self.stale.discard(rank)
            if now - at >= self.stale_s:
                self.stale.add(rank)
            elif usage is not None and rank in self.ranks(self.workers[rank[0]].key):
                self.believed[rank] = usage

    # --- thresholds and tiers

    def thresholds(self, model):
        return self.own_thresholds.get(model, self.default)

    def busy(self, key):
        """Return the ranks above a threshold."""
        decode_max, prefill_max = self.thresholds(key[0])
        busy, loads = set(), self.loads()
        for rank in self.open_ranks(key):
            tokens, blocks, _ = loads[(*key, *rank)]
            total = self.workers[rank[0]].kv_blocks
            used = self.believed.get(rank)
            if used is None and total:
                used = blocks / total
            if prefill_max is not None and tokens > prefill_max:
                busy.add(rank)
            if decode_max is not None and used is not None and used > decode_max:
                busy.add(rank)
        return busy

    def busy_workers(self, key):
        ranks, busy = self.open_ranks(key), self.busy(key)
        return {w for w, _ in ranks if all(r in busy for r in ranks if r[0] == w)}

    def not_busy(self, asked):
        """Return the ranks that the thresholds allow for a request.

        A pinned rank counts as busy only if all ranks of the worker are busy.
        """
        if asked.pinned is not None:
            busy = self.busy_workers(asked.key)
            return {rank for rank in self.ranks(asked.key) if rank[0] not in busy}
        return self.ranks(asked.key) - self.busy(asked.key)

    def is_shed(self, tier):
        if self.shed_from is None:
            return False
        return TIERS.index(tier or "standard") >= TIERS.index(self.shed_from)

    def shed(self, tier):
        self.shed_from = tier
        for waiter in list(self.line.waiters):
            if self.is_shed(waiter.asked.tier):
                self.settle(waiter, "CapacityShed", "shed")

    # --- one request

    def candidates(self, asked):
        found = set()
        for rank in self.open_ranks(asked.key):
            fits = asked.pinned in (None, rank)
            fits &= asked.allowed is None or rank[0] in asked.allowed
            fits &= asked.required <= self.workers[rank[0]].taints
            if fits:
                found.add(rank)
        return found

    def unloaded(self, key, policy):
        """Return the ranks with room for another prompt of a class."""
        found, loads = set(), self.loads()
        for rank in self.ranks(key):
            tokens, _, _ = loads[(*key, *rank)]
            limit, part = (
                policy.get("prefill_busy_threshold"),
                policy.get("prefill_busy_threshold_frac"),
            )
            over = limit is not None and tokens > limit
            over |= part is not None and tokens > part * self.workers[rank[0]].batch_tokens
            if not over:
                found.add(rank)
        return found

    def burst(self, key):
        """Return the tokens by which a flow may exceed a fair share."""
        return self.burst_of_rank * len(self.open_ranks(key))

    def room(self, waiter):
        """Return the ranks on which a waiting request could run now."""
        asked = waiter.asked
        return self.fitting(asked) & self.unloaded(asked.key, waiter.policy)

    def fitting(self, asked):
        return self.candidates(asked) & self.not_busy(asked)

    def eligible(self, asked, room, free):
        """Return the ranks among which a request with room somewhere chooses.

        Left out are ranks without room for which constrained requests wait.
        """
        awaited = set()
        for waiter in self.line.of(asked.key):
            if waiter.asked.is_constrained and not self.room(waiter):
                awaited |= self.candidates(waiter.asked)
        return free - (awaited - room)

    def own_s(self, asked, free):
        """Return the seconds by which the own work of a waiting request delays that request."""
        return 0.0

    def arrive(self, asked, now):
        """Return "served", "waits" or the name of an error."""
        try:
            return self.judge(asked, now)
        except Refused as refusal:
            return refusal.args[0]

    def judge(self, asked, now):
        if self.is_shed(asked.tier):
            self.refuse("CapacityShed", "shed")
        if not self.ranks(asked.key):
            self.refuse("NoWorkers")
        waiting_ids = {w.asked.reservation_id for w in self.line.waiters} - {None}
        if asked.reservation_id is not None and (
            asked.reservation_id in self.held or asked.reservation_id in waiting_ids
        ):
            self.refuse("Conflict")
        if asked.pinned and asked.allowed is not None and asked.pinned[0] not in asked.allowed:
            self.refuse("BadRequest")
        candidates = self.candidates(asked)
        if not candidates:
            self.refuse("NoEligibleRank")
        others_first = self.serve(asked.key, now, self.turn_max)
        allowed = self.not_busy(asked)
        if not candidates & allowed:
            self.refuse("Overloaded", "busy")
        if self.document is None:
            return self.decide(asked, candidates & allowed, now)
        return self.pass_or_wait(asked, candidates & allowed, others_first, now)

    def pass_or_wait(self, asked, free, others_first, now):
        cached = min(asked.isl, max(self.cached(asked, rank) for rank in free))
        policy = policy_of(self.document, asked.header, asked.isl - cached)
        room = free & self.unloaded(asked.key, policy)
        if room and not others_first:
            return self.decide(asked, self.eligible(asked, room, free), now)
        waiter = Waiter(
            asked=asked,
            cached=cached,
            policy=policy,
            arrived_at=now,
            deadline=now + min(asked.timeout_s, self.timeout_s or math.inf, asked.due_s),
            number=self.numbers,
            block_size=self.block_size(asked.key),
            own_s=self.own_s(asked, free),
            legs=(frozenset(self.candidates(asked)),),
        )
        if waiter.deadline <= now:
            self.refuse(*self.end_of(waiter))
        per_s = self.rate(asked.key)
        if per_s and self.line.wait_s(waiter, per_s, self.burst(asked.key)) > asked.due_s:
            self.refuse("DeadlineExceeded", "deadline_exceeded")
        there = [*self.line.waiters, *self.line.own(waiter), waiter]
        tokens = sum(w.asked.isl for w in there)
        beyond = len(there) > self.bounds[0] or tokens > self.bounds[1]
        if self.line.full_by(waiter, len(self.schedulable(asked.key))):
            self.refuse("PolicyClassFull", "queue_full")
        if beyond:
            self.refuse("QueueFull", "queue_full")
        self.numbers += 1
        self.position = self.line.add(waiter)
        return "waits"

    def refuse(self, error, outcome=None):
        if outcome is not None:
            self.tally[outcome] += 1
        raise Refused(error)

    def decide(self, asked, eligible, now):
        """Book the rank that was chosen, which must be among the cheapest."""
        if asked.reservation_id is not None and asked.reservation_id in self.held:
            raise Refused("Conflict")
        assert asked.name in self.told, f"{asked} was not served, on one of {eligible}"
        rank, reservation_id, tokens = self.told[asked.name]
        costs = {r: self.cost(asked, r, eligible) for r in eligible}
        assert rank in costs, f"{asked} was served on {rank}, not one of {eligible}"
        assert costs[rank] <= min(costs.values()) + 1e-9, (asked, rank, costs)
        query = self.query(asked, eligible)
        assert tokens == effective_prefill_tokens(self.state(asked, rank), query, Weights)
        if asked.reserves:
            assert asked.reservation_id in (None, reservation_id)
            self.reserve(reservation_id, asked.key, rank, names(asked.path), tokens, asked.isl, now)
        self.tally["admitted"] += 1
        return "served"

    # --- costs

    def state(self, asked, rank):
        tokens, blocks, _ = self.loads()[(*asked.key, *rank)]
        depths, depth = [], 0
        for medium in MEDIA:
            held, start = self.stored.get(rank, {}).get(medium, ()), depth
            while depth < len(asked.path) and asked.path[: depth + 1] in held:
                depth += 1
            depths.append(depth - start)
        return RankState(*depths, tokens, blocks, self.leading_run(asked, rank))

    def leading_run(self, asked, rank):
        hashes, runs = names(asked.path), [0]
        for held in self.held.values():
            if (held.key, held.rank) == (asked.key, rank):
                pairs = zip(held.hashes, hashes, strict=False)
                runs.append(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
        return max(runs)

    def query(self, asked, eligible):
        loads = self.loads()
        return Query(
            isl_tokens=asked.isl,
            n_blocks=len(asked.path),
            block_size=self.block_size(asked.key),
            lowest_prefill_tokens=min(loads[(*asked.key, *rank)][0] for rank in eligible),
            pinned=asked.pinned is not None,
        )

    def cached(self, asked, rank):
        return cached_tokens(self.state(asked, rank), self.query(asked, {rank}), Weights)

    def cost(self, asked, rank, eligible):
        own = cost(self.state(asked, rank), self.query(asked, eligible), Weights)
        return weighted_cost(own, self.health.get(rank, 1.0))

    # --- leaving the queue

    def settle(self, waiter, error, outcome):
        self.line.remove(waiter)
        self.tally[outcome] += 1
        self.log.append((waiter.asked.name, error))

    def stranded(self, waiter):
        """Return the error of a waiter that no rank can serve any more, or None."""
        key = waiter.asked.key
        if not self.ranks(key) or waiter.block_size != self.block_size(key):
            return "NoWorkers"
        return None if self.candidates(waiter.asked) else "NoEligibleRank"

    def serve(self, key, now, left=math.inf):
        """Serve at most `left` waiters with room; return whether that limit left others waiting."""
        for waiter in self.line.of(key):
            error = self.stranded(waiter)
            if error:
                self.settle(waiter, error, "no_rank")
            else:
                waiter.legs = (frozenset(self.candidates(waiter.asked)),)
        while left and self.line.of(key):
            waiter = self.line.take(key, self.room, self.burst(key))
            if waiter is None:
                return False
            left -= 1
            try:
                asked, room = waiter.asked, self.room(waiter)
                eligible = self.eligible(asked, room, self.fitting(asked)) if room else room
                outcome = self.decide(asked, eligible, now)
            except Refused as refusal:
                self.tally["no_rank"] += 1
                outcome = refusal.args[0]
            self.log.append((waiter.asked.name, outcome))
        return not left and bool(self.line.of(key))

    def serve_all(self, now):
        for key in list(self.line.rings):
            self.serve(key, now)

    def may_leave(self):
        """Return whether serving the queue now would remove a waiter."""
        return any(self.stranded(w) or self.room(w) for w in self.line.waiters)

    def end_of(self, waiter):
        if waiter.due_at <= waiter.deadline:
            return "DeadlineExceeded", "deadline_exceeded"
        return "QueueTimeout", "queue_timeout"

    def time_out(self, waiter):
        self.settle(waiter, *self.end_of(waiter))

    # --- how fast the queue goes

    def watch(self, now):
        """Note the tokens that left each queue with a waiter now or at the last look."""
        for key in [key for key in self.seen if not self.ranks(key)]:
            del self.seen[key]
            self.measured.pop(key, None)
        for key in {worker.key for worker in self.workers.values()}:
            if not self.ranks(key) or not (self.line.of(key) or key in self.seen):
                continue
            ring = self.line.rings[key] if self.line.of(key) else None
            ranks = len(frozenset().union(*(w.ranks for w in self.line.of(key))))
            old, released, at, before = self.seen.get(key, (None, 0, 0.0, 0))
            if ring is not None and ring is old and now > at:
                part = (now, now - at, ring.released - released, min(ranks, before))
                self.measured.setdefault(key, []).append(part)
            self.seen[key] = (ring, ring.released if ring else 0, now, ranks)

    def rate(self, key):
        """Return the tokens per second of a rank, or None while that rate is unknown."""
        parts = []
        for at, seconds, tokens, ranks in self.measured.get(key, []):
            # Times without a wait count as well.
            keep = math.exp((at - self.seen[key][2]) / 10.0)
            parts.append((keep * seconds, keep * tokens, keep * seconds * ranks))
        seconds, tokens, rank_s = (sum(part[i] for part in parts) for i in range(3))
        if seconds < 2.0 or not tokens or not rank_s:
            return None
        return tokens / rank_s

    def tick(self, now):
        ended = self.expire(now)
        for key in {worker.key for worker in self.workers.values()}:
            self.look(self.ranks(key) | self.heard.keys(), now)
        self.watch(now)
        for waiter in sorted(self.line.waiters, key=lambda w: (w.deadline, w.number)):
            if waiter.deadline <= now:
                self.time_out(waiter)
        self.serve_all(now)
        return ended


def names(path):
    """Return the identities of the blocks of a path; each identity contains the whole path."""
    return [int("".join(map(str, path[: n + 1]))) for n in range(len(path))]
