"""Naive twin of the policies of work: every prompt walked from the root, every sum made anew.

Prices are added in the order of the compiled kernel, so that both agree to the last bit.
"""

import math
from dataclasses import dataclass, field

from tests.models.cost_model import lower_tiers, round_half_away


@dataclass
class Prefill:
    """Prefill of a reservation.

    told: finished tokens of the last report, from the admitting peer or to the peers
    """

    name: str
    slot: int
    work: int
    cached: int
    path: tuple
    unfinished: bool = True
    told: int = 0
    of_peer: bool = False


@dataclass
class WorkModel:
    """Prefills and indexed prefixes of all slots.

    held: {slot: {tier: prefixes with a held last block}}; a prefix is a tuple of blocks
    """

    block_size: int
    prefills: list[Prefill] = field(default_factory=list)
    held: dict = field(default_factory=dict)
    reported: float = 1.0

    # --- the index

    def tier(self, slot, tier):
        return self.held.setdefault(slot, {}).setdefault(tier, set())

    def there(self, slot, path):
        """Return the leading blocks that the slot has, in whatever tier."""
        held = set().union(*self.held.get(slot, {}).values())
        n = 0
        while n < len(path) and path[: n + 1] in held:
            n += 1
        return n

    # --- the account

    def find(self, name):
        return next((p for p in self.prefills if p.name == name), None)

    def complete(self, name):
        prefill = self.find(name)
        if prefill.unfinished:
            prefill.unfinished = False
            self.reported += (1.0 - self.reported) / 64

    def end(self, name, tells=True):
        prefill = self.find(name)
        self.prefills.remove(prefill)
        if prefill.unfinished and tells:
            self.reported += (0.0 - self.reported) / 64

    def unfinished(self, slot):
        return [p for p in self.prefills if p.slot == slot and p.unfinished]

    def booked(self, slot):
        return sum(p.work for p in self.unfinished(slot))

    def done(self, slot):
        if not self.unfinished(slot):
            return 0
        oldest = self.unfinished(slot)[0]
        if oldest.of_peer:
            return oldest.told
        done = self.block_size * (self.there(slot, oldest.path) - oldest.cached)
        return min(max(done, 0), oldest.work)

    def record_report(self, name, done):
        """Store a peer's report of finished tokens."""
        prefill = self.find(name)
        prefill.told = max(prefill.told, min(done, prefill.work))

    def take_reports(self, slots):
        """Return {name: finished tokens} of own oldest prefills with unreported progress."""
        found = {}
        for slot in slots:
            for oldest in self.unfinished(slot)[:1]:
                if not oldest.of_peer and self.done(slot) > oldest.told:
                    found[oldest.name] = oldest.told = self.done(slot)
        return found

    def requests(self, slot):
        return sum(p.slot == slot for p in self.prefills)


@dataclass(frozen=True)
class RankState:
    """State of a rank.

    device, host, disk: cached blocks by tier
    left: tokens of unfinished prefills
    """

    device: int
    host: int
    disk: int
    leading_run: int
    left: int
    booked: int
    requests: int
    active_blocks: int
    kv_blocks: float = math.inf
    outside: bool = False
    speed: float | None = None
    held: int = 0


def own_work(rank, isl_tokens, size, config):
    cached = round_half_away((rank.device + lower_tiers(rank, config)) * size)
    return max(1, isl_tokens - max(cached, size * rank.leading_run))


def is_full(rank, size, left):
    """Return whether indexed blocks, a block per live request and unfinished prefills fill it."""
    return size * (rank.held + rank.requests) + left >= 0.9 * (size * rank.kv_blocks)


def cost(rank, isl_tokens, n_blocks, size, config, reported=1.0, usual_speed=None, least=math.inf):
    """Return J of `work` or `least_work` / relative speed, without taints and weights.

    least: own work of the rank that has most of the prompt
    """
    pace = usual_speed / rank.speed if usual_speed and rank.speed else 1.0
    own, options, knows = own_work(rank, isl_tokens, size, config), config.policy_options, True
    left, price = rank.left, 1.0 if config.track_prefill_tokens else 0.0
    if reported < 0.5:
        left, price, knows = rank.booked, min(price, 0.3), False
    if config.policy == "least_work":
        return (price * left + own + 0.0) * pace
    strict, decodes = "strict-tail" in options, "decode-sensitive" in options
    if decodes:
        price = min(price, 0.8)
    most = (8.0 if decodes else 4.0) if knows else 0.0
    per_share = 64.0 if strict else 16.0 if decodes else 32.0
    share = min(rank.requests * (1.0 / per_share), most)
    live = rank.active_blocks + n_blocks - rank.leading_run if config.track_active_blocks else 0
    live_price = 0.1 if strict else 0.03 if decodes else 0.0
    total = price * left + own + share * min(own, 32_768 if strict else 16_384)
    total += (128.0 if decodes else 256.0) * rank.requests
    total += live_price * (size * live)
    over = max(0.0, live - 0.95 * rank.kv_blocks)
    total += (0.0 if "no-memory" in options else 1.0) * (size * over)
    total = (total + (4096.0 * (own / (own + 2048.0)) if rank.outside else 0.0)) * pace
    if "copy-price" in options and is_full(rank, size, left):
        total += 0.5 * max(0.0, own - least) * pace
    return total
