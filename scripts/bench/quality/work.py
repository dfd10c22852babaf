"""The rule `work` and its variants in Python, beside the core: for trying out what is not compiled.

The real core matches the prompt and holds the reservations; the account of the work booked is kept
here.  All in tokens, the lowest wins, ties at random:

    J = P_left + u + min(R / r_scale, r_max) * min(u, u_max) + per_request * R
        + decode * B * (A + N)
    u       = max(1, isl - max(cached, B * leading run))
    R       = live requests of the rank;  A, N: as in `reference_kernels`
    P_left  = sum of u of its unfinished prefills, less what is done of the oldest:
              B * (blocks of its prompt now in the rank's index - those cached when it was booked)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from indexer.hashing.hashes import Hashes
from scripts.bench.quality.core_choosers import MODEL, CoreChooser, Scene
from scripts.bench.quality.hardware import BLOCK_TOKENS
from scripts.bench.quality.pool import Change
from scripts.bench.quality.world import Ask
from select_service.bodies.reservations import ReservationRequest
from select_service.core.decide.prompt import PromptRead
from select_service.core.decide.router_config import RouterConfig
from select_service.core.load.load_layout import N_TOTALS, REQUESTS


class Rule(NamedTuple):
    """What a variant is made of; the defaults are `work`.

    progress:      is what the oldest prefill has done taken off?
    leading:       do the blocks of live reservations count as cached?
    decode:        price of a block that is active, or would be, per token of it
    speeds:        declared prefill speeds by rank, relative to the fastest; empty: not declared
    hold_tokens:   a request waits while all ranks have more work left than this; 0: never
    hold_s:        seconds that a token of its own work puts a waiting request behind others
    """

    r_scale: float = 32.0
    r_max: float = 4.0
    u_max: float = 16_384.0
    per_request: float = 256.0
    progress: bool = True
    leading: bool = True
    decode: float = 0.0
    booked: float = 1.0
    speeds: tuple[float, ...] = ()
    hold_tokens: float = 0.0
    hold_s: float = 1.2e-4
    hold_max_s: float = 30.0


WORK = Rule()
LEAST_WORK = Rule(r_max=0.0, per_request=0.0)


@dataclass(slots=True)
class Prefill:
    """Work booked on a rank that is not known to be over.

    work:  tokens;  before: blocks of the prompt that the rank had, when it was booked
    """

    hashes: Hashes
    work: float
    before: int


class Waiting(NamedTuple):
    """A request on hold.  rank: what orders it, in seconds."""

    key: float
    ask: Ask
    since: float


class Costs(NamedTuple):
    """By rank: what a prompt would cost, its own work there, and its blocks that are there."""

    cost: list[float]
    own: list[float]
    cached: list[int]
    left: list[float]


class WorkChooser(CoreChooser):
    def __init__(
        self,
        scene: Scene,
        rule: Rule = WORK,
        *,
        reports: bool = True,
        selector_number: int = 0,
    ) -> None:
        super().__init__(scene, reports=reports, selector_number=selector_number)
        self.rule = rule
        self._config = RouterConfig()
        n = len(scene.fleet)
        self._prefills: list[dict[int, Prefill]] = [{} for _ in range(n)]
        self._where: dict[int, int] = {}
        self._booked = [0.0] * n
        self._done = [0.0] * n
        self._stale = [False] * n
        self._waiting: list[Waiting] = []
        self._changed = False
        self._speeds = rule.speeds or (1.0,) * n

    # --- choosing

    def choose(self, ask: Ask, now: float) -> int | None:
        read = self.prompt_of(ask)
        costs = self._costs(read)
        if self.rule.hold_tokens and self._is_full(costs):
            key = now + self.rule.hold_s * min(costs.own)
            self._waiting.append(Waiting(key, ask, now))
            return None
        return self._take(ask, read, costs, now)

    def _take(self, ask: Ask, read: PromptRead, costs: Costs, now: float) -> int:
        lowest = min(costs.cost)
        ties = [rank for rank, cost in enumerate(costs.cost) if cost == lowest]
        rank = ties[int(self.selector.random() * len(ties))]
        hint = max(0, ask.prompt_tokens - BLOCK_TOKENS * costs.cached[rank])
        request = ReservationRequest(
            model_name=MODEL,
            reservation_id=str(ask.number),
            worker_id=rank,
            effective_prefill_tokens=hint,
        )
        self.selector.reserve(request, now, read)
        prefill = Prefill(self.names[ask.chain], costs.own[rank], costs.cached[rank])
        self._book(ask.number, rank, prefill)
        return rank

    def _costs(self, read: PromptRead) -> Costs:
        """Of every rank."""
        n, rule = len(self._prefills), self.rule
        placing = self.partition.placing
        placing.place(read.prompt, self._config, self.partition.table.open)
        matched = placing.scratch.matched[:n, -1].tolist()
        leading = placing.scratch.leading[:n].tolist()
        requests = self.partition.load.totals.reshape(-1, N_TOTALS)[:n, REQUESTS].tolist()
        active = self.partition.load.active_blocks()[:n].tolist()
        isl, blocks = read.prompt.isl_tokens, len(read.prompt.sequence_hashes)
        cost, own, left = [], [], []
        for rank in range(n):
            found = max(matched[rank], leading[rank]) if rule.leading else matched[rank]
            u = max(1.0, isl - BLOCK_TOKENS * found)
            p, r = self._left(rank), requests[rank]
            j = rule.booked * p + u + min(r / rule.r_scale, rule.r_max) * min(u, rule.u_max)
            decode = rule.decode * BLOCK_TOKENS * (active[rank] + blocks - leading[rank])
            cost.append((j + rule.per_request * r + decode) / self._speeds[rank])
            own.append(u)
            left.append(p)
        return Costs(cost, own, matched, left)

    def _left(self, rank: int) -> float:
        """Work of the rank that is not done."""
        if not self._prefills[rank]:
            return 0.0
        if self._stale[rank]:
            self._stale[rank] = False
            self._done[rank] = self._progress(rank) if self.rule.progress else 0.0
        return self._booked[rank] - self._done[rank]

    def _progress(self, rank: int) -> float:
        """Tokens of the oldest prefill that the rank has computed, as its events say."""
        oldest = next(iter(self._prefills[rank].values()))
        there = int(self.partition.index.match(oldest.hashes)[rank, -1])
        return min(oldest.work, max(0.0, BLOCK_TOKENS * float(there - oldest.before)))

    # --- the account

    def _book(self, number: int, rank: int, prefill: Prefill) -> None:
        self._stale[rank] |= not self._prefills[rank]
        self._prefills[rank][number] = prefill
        self._booked[rank] += prefill.work
        self._where[number] = rank

    def _end_prefill(self, number: int) -> None:
        rank = self._where[number]
        ended = self._prefills[rank].pop(number, None)
        if ended is not None:
            self._booked[rank] -= ended.work
            self._stale[rank] = self._changed = True

    def first_token(self, number: int, now: float) -> None:
        super().first_token(number, now)
        if self._reports:
            self._end_prefill(number)

    def finished(self, number: int, now: float) -> None:
        super().finished(number, now)
        self._end_prefill(number)
        del self._where[number]

    def changed(self, rank: int, changes: Sequence[Change], now: float) -> None:
        super().changed(rank, changes, now)
        self._stale[rank] = self._changed = True

    # --- the hold

    def _is_full(self, costs: Costs) -> bool:
        return min(costs.left) > self.rule.hold_tokens

    def released(self, now: float) -> Iterable[tuple[int, int]]:
        while self._waiting and self._changed:
            first = min(self._waiting)
            read = self.prompt_of(first.ask)
            costs = self._costs(read)
            if self._is_full(costs) and now - first.since < self.rule.hold_max_s:
                self._changed = False
                return
            self._waiting.remove(first)
            yield first.ask.number, self._take(first.ask, read, costs, now)


def speeds_of(scene: Scene) -> tuple[float, ...]:
    """Prefill speeds relative to the fastest rank, as an operator would declare them."""
    speeds = np.array([hardware.prefill_tokens_per_s for hardware in scene.fleet])
    return tuple((speeds / speeds.max()).tolist())
