"""The rule `total_work` and its variants in Python, for trials without compiled code.

The real core matches prompts and holds reservations; an account of work follows its ledger. All in
tokens; the lowest cost wins, ties are random:

    J = P_left + own * u + min(R / r_scale, r_max) * min(u, u_max) + per_request * R
        + decode * B * (A + N) + memory * max(0, B * (A + N) - full * tokens that the rank can hold)
        + share * u / (u + SHARE_HALF)   on ranks outside the selector's share, if there are peers
        + copy * (u - least u of all)    on ranks with a full cache
    u       = max(1, isl - max(cached, B * leading run))
    R       = live requests of the rank;  A, N: as in `reference_kernels`
    P_left  = sum of u of its unfinished prefills, minus the finished part of the oldest:
              B * (blocks of its prompt now in the rank's index - those cached at its reservation)
    full    = FILLED of the rank's blocks are in its index, reserved for P_left, or one of R
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from scripts.bench.quality.work_account import BookedPrefill, WorkAccount
from select_service.core.load.compiled.load_layout import N_TOTALS, REQUESTS
from select_service.core.placement.prompt import ReadAheadPrompt
from select_service.core.placement.router_config import RouterConfig
from select_service.schemas.reservations import ReservationRequest
from select_service.sim.engine.core_router import (
    MODEL,
    REFERENCE,
    USUAL,
    CoreRouter,
    CoreScene,
    SelectorUsage,
)
from select_service.sim.engine.kv_block_pool import Change, StoredBlocks
from select_service.sim.engine.replay_world import RankRequest

SHARE_HALF = 2048.0
FILLED = 0.9
REPORTED_MIN, UNREPORTED_PRICE = 0.5, 0.3
"""Constants for callers that report less than this share of the ends of prefills. Booked work is
then a weak signal: its tokens have another price, nothing is subtracted, and the share of R is 0.
"""


class WorkRule(NamedTuple):
    """Parameters of a variant; the defaults are `total_work`.

    booked, own:   price of a token of booked work of the rank, and of own work
    progress:      whether the finished part of the oldest prefill is subtracted
    leading:       whether the blocks of live reservations count as cached
    decode:        price of an active token on the rank, including those of the request
    memory:        price of such a token beyond the share `full` of the rank's capacity
    declared:      whether the capacity is declared; otherwise the largest number of tokens seen in
                   the rank's events, once they have reported the first eviction
    speeds:        whether the cost is divided by the declared prefill speed of the rank
    share:         price of ranks outside the selector's share
    copy:          price of a token computed on a full rank though another rank holds it
    hold_tokens:   a request waits while all ranks have more work left than this, or than their
                   batch budget if larger; 0 means no wait
    hold_s:        seconds of delay in the queue per token of own work
    hold_max_s:    longest wait
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
    copy: float = 0.0
    hold_tokens: float = 0.0
    hold_s: float = 1.2e-4
    hold_max_s: float = 30.0


WORK = WorkRule()
LEAST_WORK = WorkRule(r_max=0.0, per_request=0.0, memory=0.0)


class HeldRequest(NamedTuple):
    """Request on hold.  key: sort key, in seconds"""

    key: float
    since: float
    ask: RankRequest


class CostInputs(NamedTuple):
    """Inputs of a cost.  left, own: P_left, u;  live: B * (A + N);  requests: R

    memory:   capacity of the rank, in tokens;  outside: whether the rank is outside the share
    reported: whether callers report the ends of prefills; if not, `left` is all booked work
    copied:   own work above the least of all ranks, 0 unless the rank is full
    """

    left: float
    own: float
    requests: int
    live: float
    memory: float
    outside: bool
    reported: bool = True
    copied: float = 0.0


class RankCosts(NamedTuple):
    """Costs of a prompt by rank, with its cached blocks and the terms."""

    cost: list[float]
    cached: list[int]
    slots: list[CostInputs]


def cost_of(slot: CostInputs, rule: WorkRule) -> float:
    """Return J, in tokens."""
    load = min(slot.requests / rule.r_scale, rule.r_max) * min(slot.own, rule.u_max)
    booked = rule.booked
    if not slot.reported:
        load, booked = 0.0, min(booked, UNREPORTED_PRICE)
    j = booked * slot.left + rule.own * slot.own + load + rule.per_request * slot.requests
    j += rule.decode * slot.live
    j += rule.memory * max(0.0, slot.live - rule.full * slot.memory)
    if slot.outside:
        j += rule.share * slot.own / (slot.own + SHARE_HALF)
    return j + rule.copy * slot.copied


class WorkRouter(CoreRouter):
    def __init__(
        self,
        scene: CoreScene,
        rule: WorkRule = WORK,
        setting: SelectorUsage = USUAL,
        config: RouterConfig = REFERENCE,
    ) -> None:
        """config: configuration of the core, which matches and holds but does not choose here"""
        super().__init__(scene, config, setting)
        n = len(scene.fleet)
        self._size = scene.fleet[0].block_tokens
        self.account = WorkAccount(self.partition, n, self._size, progress=rule.progress)
        self.selector.ledger.add_listener(self.account)
        self.outside = [False] * n
        """Whether each rank is outside the share of this selector; False for all without peers."""
        self._rule = rule
        self._waiting: list[HeldRequest] = []
        self._enough = [max(rule.hold_tokens, hardware.batch_tokens) for hardware in scene.fleet]
        self._changed = False
        self._memory = [float(self._size * hardware.kv_blocks) for hardware in scene.fleet]
        if not rule.declared:
            self._memory = [inf] * n
        self._held, self._most = [0] * n, [0] * n
        speeds = np.array([hardware.prefill_tokens_per_s for hardware in scene.fleet])
        self._speeds = (speeds / np.median(speeds)).tolist() if rule.speeds else [1.0] * n

    # Choices

    def choose(self, ask: RankRequest, now: float) -> int | None:
        read = self.read_prompt(ask)
        costs = self.costs_of(read)
        if self._is_full(costs):
            key = now + self._rule.hold_s * min(slot.own for slot in costs.slots)
            self._waiting.append(HeldRequest(key, now, ask))
            return None
        return self._take(ask, read, costs, now)

    def _take(self, ask: RankRequest, read: ReadAheadPrompt, costs: RankCosts, now: float) -> int:
        lowest = min(costs.cost)
        ties = [rank for rank, cost in enumerate(costs.cost) if cost == lowest]
        # The generator of the selector keeps runs reproducible.
        rank = ties[int(self.selector.decisions.rng.random() * len(ties))]
        request = ReservationRequest(
            model_name=MODEL,
            reservation_id=str(ask.number),
            worker_id=rank,
            effective_prefill_tokens=max(0, ask.prompt_tokens - self._size * costs.cached[rank]),
        )
        self.announce_prompt(read, costs)
        self.account.peers_work[str(ask.number)] = costs.slots[rank].own
        self.selector.reserve(request, now, read)
        return rank

    def announce_prompt(self, read: ReadAheadPrompt, costs: RankCosts) -> None:
        """Announce the prompt of the next reservation."""
        hashes = read.prompt.block_hashes
        pairs = zip(costs.slots, costs.cached, strict=True)
        self.account.upcoming = [BookedPrefill(hashes, slot.own, cached) for slot, cached in pairs]

    def costs_of(self, read: ReadAheadPrompt) -> RankCosts:
        """Return the costs of every rank."""
        n, placing = len(self._memory), self.partition.placer
        placing.place_prompt(
            read.prompt, self.selector.decisions.config, self.partition.table.open_slots
        )
        matched = placing.scratch.matched[:n, -1].tolist()
        leading = placing.scratch.leading[:n].tolist()
        requests = self.partition.load.totals.reshape(-1, N_TOTALS)[:n, REQUESTS].tolist()
        active = self.partition.load.compute_active_blocks()[:n].tolist()
        isl, blocks = read.prompt.isl_tokens, len(read.prompt.sequence_hashes)
        reported = self.account.reported >= REPORTED_MIN
        left_of = self.account.unfinished_work if reported else self.account.total_work
        slots = []
        for rank in range(n):
            found = max(matched[rank], leading[rank] if self._rule.leading else 0)
            slots.append(
                CostInputs(
                    left=left_of(rank),
                    own=max(1.0, isl - self._size * found),
                    requests=requests[rank],
                    live=self._size * (active[rank] + blocks - leading[rank]),
                    memory=self._memory[rank],
                    outside=self.outside[rank],
                    reported=reported,
                )
            )
        if self._rule.copy:
            slots = self._add_copies(slots)
        paired = zip(slots, self._speeds, strict=True)
        return RankCosts(
            [cost_of(slot, self._rule) / speed for slot, speed in paired], matched, slots
        )

    def _add_copies(self, slots: Sequence[CostInputs]) -> list[CostInputs]:
        """Return the inputs with the tokens that full ranks would copy."""
        least, changed = min(slot.own for slot in slots), []
        for rank, slot in enumerate(slots):
            blocks = self._held[rank] + slot.requests
            is_full = self._size * blocks + slot.left >= FILLED * slot.memory
            changed.append(slot._replace(copied=slot.own - least if is_full else 0.0))
        return changed

    # Release of waiting requests

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
        self._count_held(rank, changes)

    def _count_held(self, rank: int, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, StoredBlocks):
                self._held[rank] += change.end - change.first
                self._most[rank] = max(self._most[rank], self._held[rank])
            else:
                self._held[rank] -= len(change.blocks)
                if not self._rule.declared:
                    # The first eviction reveals that the cache was full.
                    self._memory[rank] = float(self._size * self._most[rank])

    def _is_full(self, costs: RankCosts) -> bool:
        if not self._rule.hold_tokens:
            return False
        pairs = zip(costs.slots, self._enough, strict=True)
        return all(slot.reported and slot.left > enough for slot, enough in pairs)

    def released(self, now: float) -> Iterable[tuple[int, int]]:
        while self._waiting and self._changed:
            first = min(self._waiting)
            read = self.read_prompt(first.ask)
            costs = self.costs_of(read)
            if self._is_full(costs) and now - first.since < self._rule.hold_max_s:
                self._changed = False
                return
            self._waiting.remove(first)
            yield first.ask.number, self._take(first.ask, read, costs, now)
