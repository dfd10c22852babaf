"""Naive twin of the ledger: a dictionary of what is booked, sums recomputed when asked."""

from dataclasses import dataclass


@dataclass
class Held:
    account: int
    slot: int
    hashes: list
    prefill_tokens: int
    origin: int | None
    renewed_at: float
    lease_ends_at: float | None = None
    output_blocks: int = 0


class LedgerModel:
    def __init__(self, ttl_s):
        self.ttl_s = ttl_s
        self.held: dict[str, Held] = {}
        self.leaving: set[tuple[int, int]] = set()

    def book(self, name, held, lease_s):
        if lease_s is not None and lease_s < self.ttl_s:
            held.lease_ends_at = held.renewed_at + lease_s
        self.held[name] = held

    def renew(self, name, now):
        self.held[name].renewed_at, self.held[name].lease_ends_at = now, None

    def overdue(self, now):
        """Names by whether their lease has ended."""
        found = set()
        for name, held in self.held.items():
            end = held.renewed_at + self.ttl_s
            if min(end, end if held.lease_ends_at is None else held.lease_ends_at) <= now:
                found.add(name)
        return found

    def on(self, account, slot):
        return {n for n, h in self.held.items() if (h.account, h.slot) == (account, slot)}

    def totals(self, account, slot):
        """prefill tokens, requests"""
        here = [self.held[name] for name in self.on(account, slot)]
        return sum(held.prefill_tokens for held in here), len(here)

    def sums(self):
        """{(account, origin): (requests, prefill tokens)}"""
        found = {}
        for held in self.held.values():
            requests, tokens = found.get((held.account, held.origin), (0, 0))
            found[held.account, held.origin] = requests + 1, tokens + held.prefill_tokens
        return found
