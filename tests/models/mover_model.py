"""Naive twin of reservations that leave ranks: one dictionary to which each event is applied."""

from dataclasses import dataclass

BLOCK = 4


@dataclass
class Booked:
    worker_id: int
    tokens: int
    migratable: bool
    allowed: tuple
    prefilling: bool = True
    prefill_tokens: int = 0
    outputs: int = 0

    @property
    def all_tokens(self):
        return self.tokens + BLOCK * self.outputs

    @property
    def blocks(self):
        """Number of blocks of the prompt; two prompts never share a block."""
        return self.tokens // BLOCK


class MoverModel:
    """Reservations on workers.

    serving: workers that may take reservations
    asked: reservations that each left worker had and that need an event
    """

    def __init__(self, workers):
        self.held: dict[str, Booked] = {}
        self.serving = set(workers)
        self.asked: dict[int, set[str]] = {}
        self.goals: dict[int, set[int]] = {}
        """Workers that have served ever since, by the worker that was left."""

    def leave(self, worker_id):
        self.serving.discard(worker_id)
        for goals in self.goals.values():
            goals.discard(worker_id)
        self.goals[worker_id] = set(self.serving)
        here = {name for name, held in self.held.items() if held.worker_id == worker_id}
        self.asked[worker_id] = self.asked.get(worker_id, set()) | here

    def follow(self, name, source, target, method):
        """Apply an event, which must be allowed."""
        held = self.held[name]
        assert held.worker_id == source
        assert source not in self.serving
        self.asked[source].discard(name)
        if target is None:
            assert method == "abort"
            goals = self.goals[source]
            goals = goals.intersection(held.allowed) if held.allowed else goals
            assert not (held.migratable and goals), "somebody would have taken it"
            return
        assert held.migratable
        assert target in self.serving
        assert not held.allowed or target in held.allowed
        held.worker_id = target
        if method == "reprefill":
            held.prefilling, held.prefill_tokens = True, held.all_tokens

    def is_done(self):
        """Return whether every reservation that had to move has had an event."""
        for worker_id, names in self.asked.items():
            here = [n for n in names if n in self.held and self.held[n].worker_id == worker_id]
            if here and worker_id not in self.serving:
                return False
        return True

    def totals(self, worker_id):
        """Return prefill tokens, requests and blocks."""
        here = [held for held in self.held.values() if held.worker_id == worker_id]
        tokens = sum(held.prefill_tokens for held in here)
        return tokens, len(here), sum(held.blocks + held.outputs for held in here)
