"""The rule `work` and its variants in Python, beside the core: for trying out what is not compiled.

The real core matches the prompt and holds the reservations; an account of work follows its ledger.
All in tokens, the lowest wins, ties at random:

    J = P_left + own * u + min(R / r_scale, r_max) * min(u, u_max) + per_request * R
        + decode * B * (A + N) + memory * max(0, B * (A + N) - full * tokens that the rank can hold)
        + share * u / (u + SHARE_HALF)   on ranks outside the selector's share, where it has peers
    u       = max(1, isl - max(cached, B * leading run))
    R       = live requests of the rank;  A, N: as in `reference_kernels`
    P_left  = sum of u of its unfinished prefills, less what is done of the oldest:
              B * (blocks of its prompt now in the rank's index - those cached when it was booked)
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from scripts.bench.quality.work_account import Prefill, WorkAccount
from select_service.bodies.reservations import ReservationRequest
from select_service.core.decide.prompt import PromptRead
from select_service.core.decide.router_config import RouterConfig
from select_service.core.load.load_layout import N_TOTALS, REQUESTS
from select_service.replaying.core_choosers import (
    MODEL,
    REFERENCE,
    USUAL,
    CoreChooser,
    Scene,
    Setting,
)
from select_service.replaying.hardware import BLOCK_TOKENS
from select_service.replaying.pool import Change, Stored
from select_service.replaying.world import Ask

SHARE_HALF = 2048.0
REPORTED_MIN, UNREPORTED_PRICE = 0.5, 0.3
"""Where callers report less than that share of the ends of prefills, booked work says little: a
token of it costs so much, nothing is taken off, and the share of R is 0."""


class Rule(NamedTuple):
    """What a variant is made of; the defaults are `work`.

    booked, own:   price of a token of work that is booked on the rank, and of own work
    progress:      is what the oldest prefill has done taken off?
    leading:       do the blocks of live reservations count as cached?
    decode:        price of a token that is active on the rank, or would be
    memory:        price of such a token beyond the share `full` of what the rank can hold
    declared:      is that declared?  Otherwise it is the most that the rank's events showed it to
                   hold, once they have told of the first block that went
    speeds:        is the cost divided by the declared prefill speed of the rank?
    share:         price of ranks outside the selector's share
    hold_tokens:   a request waits while all ranks have more work left than this, or than their
                   batch budget where that is larger; 0: never
    hold_s:        seconds that a token of its own work puts a waiting request behind others
    hold_max_s:    no request waits longer
    """

    r_scale: float = 32.0
    r_max: float = 4.0
    u_max: float = 16_384.0
    per_request: float = 256.0
    booked: float = 1.0
    own: float = 1.0
    progress: bool = True
    leading: bool = True
    decode: float = 0.0
    memory: float = 1.0
    full: float = 0.95
    declared: bool = True
    speeds: bool = False
    share: float = 4096.0
    hold_tokens: float = 0.0
    hold_s: float = 1.2e-4
    hold_max_s: float = 30.0


WORK = Rule()
LEAST_WORK = Rule(r_max=0.0, per_request=0.0, memory=0.0)


class Waiting(NamedTuple):
    """A request on hold.  key: what orders it, in seconds."""

    key: float
    since: float
    ask: Ask


class Slot(NamedTuple):
    """What a cost is made of.  left, own: P_left, u;  live: B * (A + N);  requests: R

    memory:   tokens that the rank can hold;  outside: is it outside the share?
    reported: do callers report the ends of prefills?  If not, `left` is all that is booked
    """

    left: float
    own: float
    requests: int
    live: float
    memory: float
    outside: bool
    reported: bool = True


class Costs(NamedTuple):
    """By rank: what a prompt would cost, its blocks that are there, and the terms."""

    cost: list[float]
    cached: list[int]
    slots: list[Slot]


def cost_of(slot: Slot, rule: Rule) -> float:
    """J, in tokens."""
    load = min(slot.requests / rule.r_scale, rule.r_max) * min(slot.own, rule.u_max)
    booked = rule.booked
    if not slot.reported:
        load, booked = 0.0, min(booked, UNREPORTED_PRICE)
    j = booked * slot.left + rule.own * slot.own + load + rule.per_request * slot.requests
    j += rule.decode * slot.live
    j += rule.memory * max(0.0, slot.live - rule.full * slot.memory)
    if slot.outside:
        j += rule.share * slot.own / (slot.own + SHARE_HALF)
    return j


class WorkChooser(CoreChooser):
    def __init__(
        self,
        scene: Scene,
        rule: Rule = WORK,
        setting: Setting = USUAL,
        config: RouterConfig = REFERENCE,
    ) -> None:
        """config: of the core, which matches and holds, and here does not choose"""
        super().__init__(scene, config, setting)
        n = len(scene.fleet)
        self.account = WorkAccount(self.partition, n, progress=rule.progress)
        self.selector.ledger.follow(self.account)
        self.outside = [False] * n
        """Is the rank outside the share of this selector?  Of none, unless it has peers."""
        self._rule = rule
        self._waiting: list[Waiting] = []
        self._enough = [max(rule.hold_tokens, hardware.batch_tokens) for hardware in scene.fleet]
        self._changed = False
        self._memory = [float(BLOCK_TOKENS * hardware.kv_blocks) for hardware in scene.fleet]
        if not rule.declared:
            self._memory = [inf] * n
        self._held, self._most = [0] * n, [0] * n
        speeds = np.array([hardware.prefill_tokens_per_s for hardware in scene.fleet])
        self._speeds = (speeds / np.median(speeds)).tolist() if rule.speeds else [1.0] * n

    # --- choosing

    def choose(self, ask: Ask, now: float) -> int | None:
        read = self.prompt_of(ask)
        costs = self.costs_of(read)
        if self._is_full(costs):
            key = now + self._rule.hold_s * min(slot.own for slot in costs.slots)
            self._waiting.append(Waiting(key, now, ask))
            return None
        return self._take(ask, read, costs, now)

    def _take(self, ask: Ask, read: PromptRead, costs: Costs, now: float) -> int:
        lowest = min(costs.cost)
        ties = [rank for rank, cost in enumerate(costs.cost) if cost == lowest]
        rank = ties[int(self.selector.random() * len(ties))]
        request = ReservationRequest(
            model_name=MODEL,
            reservation_id=str(ask.number),
            worker_id=rank,
            effective_prefill_tokens=max(0, ask.prompt_tokens - BLOCK_TOKENS * costs.cached[rank]),
        )
        self.expect(read, costs)
        self.account.peers_work[str(ask.number)] = costs.slots[rank].own
        self.selector.reserve(request, now, read)
        return rank

    def expect(self, read: PromptRead, costs: Costs) -> None:
        """The next booking is of this prompt."""
        hashes = read.prompt.block_hashes
        pairs = zip(costs.slots, costs.cached, strict=True)
        self.account.upcoming = [Prefill(hashes, slot.own, cached) for slot, cached in pairs]

    def costs_of(self, read: PromptRead) -> Costs:
        """Of every rank."""
        n, placing = len(self._memory), self.partition.placing
        placing.place(read.prompt, self.selector.router, self.partition.table.open)
        matched = placing.scratch.matched[:n, -1].tolist()
        leading = placing.scratch.leading[:n].tolist()
        requests = self.partition.load.totals.reshape(-1, N_TOTALS)[:n, REQUESTS].tolist()
        active = self.partition.load.active_blocks()[:n].tolist()
        isl, blocks = read.prompt.isl_tokens, len(read.prompt.sequence_hashes)
        reported = self.account.reported >= REPORTED_MIN
        left_of = self.account.left if reported else self.account.work
        slots = []
        for rank in range(n):
            found = max(matched[rank], leading[rank] if self._rule.leading else 0)
            slots.append(
                Slot(
                    left=left_of(rank),
                    own=max(1.0, isl - BLOCK_TOKENS * found),
                    requests=requests[rank],
                    live=BLOCK_TOKENS * (active[rank] + blocks - leading[rank]),
                    memory=self._memory[rank],
                    outside=self.outside[rank],
                    reported=reported,
                )
            )
        paired = zip(slots, self._speeds, strict=True)
        return Costs([cost_of(slot, self._rule) / speed for slot, speed in paired], matched, slots)

    # --- what may let a waiting request go

    def first_token(self, number: int, now: float) -> None:
        super().first_token(number, now)
        self._changed = True

    def finished(self, number: int, now: float) -> None:
        super().finished(number, now)
        self._changed = True

    def changed(self, rank: int, changes: Sequence[Change], now: float) -> None:
        super().changed(rank, changes, now)
        self.account.index_changed(rank)
        self._changed = True
        if not self._rule.declared:
            self._learn_memory(rank, changes)

    def _learn_memory(self, rank: int, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, Stored):
                self._held[rank] += change.end - change.first
                self._most[rank] = max(self._most[rank], self._held[rank])
            else:
                self._held[rank] -= len(change.blocks)
                self._memory[rank] = float(BLOCK_TOKENS * self._most[rank])

    def _is_full(self, costs: Costs) -> bool:
        if not self._rule.hold_tokens:
            return False
        pairs = zip(costs.slots, self._enough, strict=True)
        return all(slot.reported and slot.left > enough for slot, enough in pairs)

    def released(self, now: float) -> Iterable[tuple[int, int]]:
        while self._waiting and self._changed:
            first = min(self._waiting)
            read = self.prompt_of(first.ask)
            costs = self.costs_of(read)
            if self._is_full(costs) and now - first.since < self._rule.hold_max_s:
                self._changed = False
                return
            self._waiting.remove(first)
            yield first.ask.number, self._take(first.ask, read, costs, now)
