"""Naive twin of ActiveLoad: every live reservation is kept whole and all sums are recomputed."""

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile


@dataclass
class LiveReservation:
    slot: int
    hashes: list[int]
    prefill_tokens: int
    output_weights: list[float] = field(default_factory=list)
    decay: float | None = None


class LoadModel:
    def __init__(self) -> None:
        self.live: dict[int, LiveReservation] = {}
        self.weights: dict[tuple[int, int], float] = {}

    def references(self, slot: int) -> Counter[int]:
        return Counter(h for r in self.live.values() if r.slot == slot for h in r.hashes)

    def add(self, name: int, slot: int, hashes: list[int], prefill_tokens: int) -> None:
        for h in hashes:
            self.weights.setdefault((slot, h), 1.0)
        self.live[name] = LiveReservation(slot, hashes, prefill_tokens)

    def remove(self, name: int) -> None:
        gone = self.live.pop(name)
        left = self.references(gone.slot)
        for h in gone.hashes:
            if not left[h]:
                self.weights.pop((gone.slot, h), None)

    def output_block(self, name: int, decay_fraction: float | None) -> None:
        reservation = self.live[name]
        reservation.output_weights.append(1.0)
        if decay_fraction is None:
            return
        reservation.output_weights = [decay_fraction] * len(reservation.output_weights)
        self.decay(reservation, decay_fraction)

    def decay(self, reservation: LiveReservation, decay_fraction: float) -> None:
        reservation.decay = decay_fraction
        references = self.references(reservation.slot)
        for h in reservation.hashes:
            if references[h] == 1:
                self.weights[(reservation.slot, h)] = decay_fraction

    def move(self, name: int, slot: int, prefill_tokens: int | None) -> None:
        """Move a reservation to a slot.

        Unshared blocks keep the weight of the old slot; shared blocks get that of the new slot.
        """
        old = self.live[name]
        self.remove(name)
        self.add(name, slot, old.hashes, old.prefill_tokens)
        if prefill_tokens is not None:
            self.live[name].prefill_tokens = prefill_tokens
        self.live[name].output_weights = old.output_weights
        if old.decay is not None:
            self.decay(self.live[name], old.decay)

    def active_blocks(self, slot: int) -> int:
        prompt = [weight for (s, _), weight in self.weights.items() if s == slot]
        output = [w for r in self.live.values() if r.slot == slot for w in r.output_weights]
        return math.floor(math.fsum(prompt + output) + 0.5 + 1e-9)

    def prefill_tokens(self, slot: int) -> int:
        return sum(r.prefill_tokens for r in self.live.values() if r.slot == slot)

    def requests(self, slot: int) -> int:
        return sum(r.slot == slot for r in self.live.values())

    def leading_run(self, slot: int, query: list[int]) -> int:
        shared = [
            sum(
                1
                for _ in takewhile(
                    lambda pair: pair[0] == pair[1], zip(r.hashes, query, strict=False)
                )
            )
            for r in self.live.values()
            if r.slot == slot
        ]
        return max(shared, default=0)
