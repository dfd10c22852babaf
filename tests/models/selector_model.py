"""Naive twin of the selector's bookkeeping: dictionaries of requests, loads recomputed.

The twin has no slots, indexes or costs. KV events are off and prompts are hash lists.
"""

import math
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class ModelWorker:
    key: tuple[str, str]
    block_size: int | None
    endpoint: str | None
    dp_size: int
    lifecycle: str = "incomplete"

    @property
    def complete(self):
        return bool(self.endpoint and self.block_size and self.dp_size)


@dataclass
class ModelReservation:
    key: tuple[str, str]
    rank: tuple[int, int]
    hashes: list[int]
    prefill_tokens: int
    isl_tokens: int
    renewed_at: float
    output: list[float] = field(default_factory=list)


class SelectorModel:
    def __init__(self, ttl_s):
        self.ttl_s = ttl_s
        self.workers: dict[int, ModelWorker] = {}
        self.held: dict[str, ModelReservation] = {}
        self.weights: dict[tuple, float] = {}

    def schedulable(self, key):
        return {i: w for i, w in self.workers.items() if w.key == key and w.lifecycle[0] == "s"}

    def put(self, worker_id, worker):
        others = [w for i, w in self.schedulable(worker.key).items() if i != worker_id]
        fits = all(w.block_size == worker.block_size for w in others)
        worker.lifecycle = "schedulable" if worker.complete and fits else "incomplete"
        old = self.workers.get(worker_id)
        self.workers[worker_id] = worker
        same = old is not None and (old.key, old.block_size) == (worker.key, worker.block_size)
        for name, held in list(self.held.items()):
            if held.rank[0] == worker_id:
                continues = same and worker.lifecycle == "schedulable"
                if not continues or held.rank[1] >= worker.dp_size:
                    self.free(name)

    def delete_worker(self, worker_id):
        self.workers[worker_id].lifecycle = "unschedulable"
        for name, held in list(self.held.items()):
            if held.rank[0] == worker_id:
                self.free(name)

    def references(self, key, rank):
        return Counter(
            h for r in self.held.values() if (r.key, r.rank) == (key, rank) for h in r.hashes
        )

    def reserve(self, name, key, rank, hashes, prefill_tokens, isl_tokens, now):
        self.held[name] = ModelReservation(key, rank, hashes, prefill_tokens, isl_tokens, now)
        for h in hashes:
            self.weights.setdefault((key, rank, h), 1.0)

    def repeated(self, name, key, hashes, isl_tokens, now):
        """Renew and return the reservation of that name, or return None if the prompt differs."""
        held = self.held[name]
        if (held.key, held.hashes, held.isl_tokens) != (key, hashes, isl_tokens):
            return None
        held.renewed_at = now
        return held

    def free(self, name):
        gone = self.held.pop(name)
        left = self.references(gone.key, gone.rank)
        for h in gone.hashes:
            if not left[h]:
                self.weights.pop((gone.key, gone.rank, h), None)

    def output_block(self, name, fraction):
        held = self.held[name]
        held.output.append(1.0)
        if fraction is not None:
            held.output = [fraction] * len(held.output)
            references = self.references(held.key, held.rank)
            for h in held.hashes:
                if references[h] == 1:
                    self.weights[(held.key, held.rank, h)] = fraction

    def expire(self, now):
        ended = [n for n, r in self.held.items() if r.renewed_at + self.ttl_s <= now]
        for name in ended:
            self.free(name)
        return ended

    def potential_blocks(self, key, rank, hashes, isl_tokens):
        """Return the active blocks of a rank after booking a prompt there, with the begun block."""
        live = [r.hashes for r in self.held.values() if (r.key, r.rank) == (key, rank)]
        prefixes = (hashes[:n] for n in range(len(hashes), -1, -1))
        leading = next(len(p) for p in prefixes if not p or p in (h[: len(p)] for h in live))
        begun = math.ceil(isl_tokens / self.workers[rank[0]].block_size)
        return self.loads()[(*key, *rank)][1] + max(len(hashes), begun) - leading

    def loads(self):
        """Return prefill tokens, blocks and requests by (model, tenant, worker_id, dp_rank)."""
        rows = {}
        for worker_id, worker in self.workers.items():
            if worker.lifecycle != "schedulable":
                continue
            for dp_rank in range(worker.dp_size):
                rank = (worker_id, dp_rank)
                here = [r for r in self.held.values() if (r.key, r.rank) == (worker.key, rank)]
                weights = [
                    w for (k, r, _), w in self.weights.items() if (k, r) == (worker.key, rank)
                ]
                weights += [w for r in here for w in r.output]
                rows[(*worker.key, *rank)] = (
                    sum(r.prefill_tokens for r in here),
                    math.floor(math.fsum(weights) + 0.5 + 1e-9),
                    len(here),
                )
        return rows
