"""Naive twin of the ledger: a dictionary of reservations; every read recomputes the sums."""

from dataclasses import dataclass


@dataclass
class LedgerEntry:
    account: int
    slot: int
    hashes: list
    prefill_tokens: int
    origin: int | None
    renewed_at: float
    lease_ends_at: float | None = None
    output_blocks: int = 0
    counted_by: int | None = None


class LedgerModel:
    def __init__(self, ttl_s):
        self.ttl_s = ttl_s
        self.held: dict[str, LedgerEntry] = {}
        self.leaving: set[tuple[int, int]] = set()

    def book(self, name, held, lease_s):
        if lease_s is not None and lease_s < self.ttl_s:
            held.lease_ends_at = held.renewed_at + lease_s
        self.held[name] = held

    def renew(self, name, now):
        self.held[name].renewed_at, self.held[name].lease_ends_at = now, None

    def find_overdue(self, now):
        """Return the names of the reservations with an ended lease."""
        return {name for name, held in self.held.items() if self.end_of(held) <= now}

    def end_of(self, held):
        end = held.renewed_at + self.ttl_s
        return end if held.lease_ends_at is None else min(end, held.lease_ends_at)

    def move(self, name, slot, prefill_tokens):
        """Move a reservation to a slot as the newest; `prefill_tokens` is None if unchanged."""
        held = self.held.pop(name)
        held.slot = slot
        if prefill_tokens is not None:
            held.prefill_tokens = prefill_tokens
        self.held[name] = held

    def on(self, account, slot):
        return {n for n, h in self.held.items() if (h.account, h.slot) == (account, slot)}

    def totals(self, account, slot):
        """Return prefill tokens and requests."""
        here = [self.held[name] for name in self.on(account, slot)]
        return sum(held.prefill_tokens for held in here), len(here)

    def sums(self):
        """Return {(account, origin): (requests, prefill tokens)}."""
        found = {}
        for held in self.held.values():
            requests, tokens = found.get((held.account, held.origin), (0, 0))
            found[held.account, held.origin] = requests + 1, tokens + held.prefill_tokens
        return found
