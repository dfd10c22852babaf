"""Choice of pairs in a partition: the arrays behind `pair_kernels`, and the results by name."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.array_types import Floats, Mask, store_pointer
from select_service.core.pairs import pair_layout as layout
from select_service.core.pairs.link_groups import (
    LinkGroups,
    LinkPrices,
    circle_hosts,
    compute_prices,
    make_link_groups,
)
from select_service.core.pairs.pair_kernels import (
    FOR_BOTH,
    FOR_DECODE,
    FOR_PREFILL,
    NO_SLOT,
    place_pair,
)
from select_service.core.placement.placer import Placer
from select_service.core.placement.policies.work_policy import WORK_POLICY
from select_service.core.placement.prompt import Prompt
from select_service.core.workers.transfer_prices import (
    DomainRule,
    LinkPosition,
    TransferLevel,
    transfer_token_s,
)

RULES_KEPT = 8
"""Number of domain rules of requests with stored prices; each has a matrix like the links."""
LINKS_KEPT = 4096
"""Number of pairs of link groups with a stored transfer."""
_DIRECTIONS = (layout.LEAVING, layout.ENTERING)


class PairPlacement(NamedTuple):
    """Choice of a pair; costs and tokens in tokens of prefill work.

    prefill: slot of the prefill; None means that `decode` does both
    decode: slot of the decode
    local_cost, remote_cost: smallest cost of either way; infinite if nothing is eligible
    prefill_cached, decode_cached: prompt tokens that the ranks hold themselves
    credit: tokens that the rank of the prefill need not compute, because a shared cache has them
    """

    prefill: int | None
    decode: int
    local_cost: float
    remote_cost: float
    move_tokens: float
    move_cost: float
    hold_cost: float
    prefill_left: float
    prefill_work: float
    prefill_cached: float
    decode_work: float
    decode_cached: float
    credit: float = 0.0

    @property
    def is_local(self) -> bool:
        return self.prefill is None

    @property
    def prefill_slot(self) -> int:
        """Slot that computes the prompt."""
        return self.decode if self.prefill is None else self.prefill

    @property
    def cached_tokens(self) -> float:
        """Prompt tokens that the rank of the prefill holds."""
        return self.decode_cached if self.prefill is None else self.prefill_cached

    @property
    def own_work(self) -> float:
        """Prompt tokens that the rank of the prefill would compute."""
        return self.decode_work if self.prefill is None else self.prefill_work


class TransferRoute(NamedTuple):
    """Hosts of the links that a transfer takes; None means an unknown host, or no link at all."""

    leaving: str | None = None
    entering: str | None = None


class TransferLink(NamedTuple):
    """Route of a transfer, and the smallest place that both ranks share."""

    route: TransferRoute
    level: TransferLevel


class PairMasks(NamedTuple):
    """Eligible slots, bool[3, n_slots]: to prefill for others, to decode for others, for both."""

    rows: npt.NDArray[np.bool_]

    @property
    def prefill(self) -> Mask:
        mask: Mask = self.rows[FOR_PREFILL]
        return mask

    @property
    def decode(self) -> Mask:
        mask: Mask = self.rows[FOR_DECODE]
        return mask

    @property
    def both(self) -> Mask:
        mask: Mask = self.rows[FOR_BOTH]
        return mask


class PairPlacer:
    """Placer of pairs in a partition.  Reads the state of the partition's `Placer` only."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self.header = np.zeros(layout.HEADER_LENGTH, np.int64)
        self._arrays: dict[int, npt.NDArray[Any]] = {at: np.zeros(0) for at in _DIRECTIONS}
        self.result = np.zeros(layout.N_RESULT, np.float64)
        """Numbers of the last choice (pair_layout)."""
        self._store(layout.RESULT, self.result)
        self._waiting_elsewhere: dict[int, dict[str, float]] = {each: {} for each in _DIRECTIONS}
        """Tokens that have to leave and to enter hosts without workers at present."""
        self._number_of: dict[str, int] = {}
        # The rule of pairs has fixed prices; the options of the work policy would change the costs.
        config = placer.default_config._replace(policy_options=())
        self.parameters = WORK_POLICY.make_parameters(config)
        self.install_groups(make_link_groups({}, 0, None))

    def _store(self, pair: int, array: npt.NDArray[Any]) -> None:
        self._arrays[pair] = array
        store_pointer(self.header, pair, array)

    def update_links(
        self, positions: Mapping[int, LinkPosition], n_slots: int, speed: float | None
    ) -> None:
        """Recompute the link groups after a change of workers; arguments of `make_link_groups`."""
        self.install_groups(make_link_groups(positions, n_slots, speed))

    def install_groups(self, groups: LinkGroups) -> None:
        """Install groups; tokens in transfer follow the hosts by name."""
        waiting = self.waiting_by_host()
        self.groups = groups
        self._group_of: list[int] = groups.group.tolist()
        self._links: dict[tuple[int, int], TransferLink] = {}
        self._prices_by_rule: dict[DomainRule, LinkPrices] = {}
        self._usual_prices = compute_prices(groups)
        n_groups, n_hosts = len(groups.host), len(groups.host_names)
        self._store(layout.GROUP, groups.group)
        self._store(layout.HOST, groups.host)
        self._store(layout.NEXT, circle_hosts(groups.host))
        # None, where unknown, becomes NaN.
        self._store(
            layout.TOKEN_S, np.array([*map(transfer_token_s, groups.positions)], np.float64)
        )
        self._store_prices(self._usual_prices)
        self._number_of = {name: host for host, name in enumerate(groups.host_names)}
        for pair, tokens_of in zip(_DIRECTIONS, waiting, strict=True):
            self._store(pair, np.zeros(n_hosts, np.float64))
            self._waiting_elsewhere[pair].clear()
            for name, tokens in tokens_of.items():
                self._add_waiting(pair, name, tokens)
        self._store(layout.BEST, np.zeros(2 * n_groups, np.float64))
        self._store(layout.BEST_SLOT, np.zeros(2 * n_groups, np.int64))
        self._store(layout.REACHED, np.zeros(n_groups, np.float64))
        for pair in (layout.REACHED_BY, layout.ORDER, layout.RUN_END):
            self._store(pair, np.zeros(n_groups, np.int64))

    def _store_prices(self, prices: LinkPrices) -> None:
        self._prices = prices
        self._store(layout.PRICE, prices.price)
        self._store(layout.LEAST_PRICE, prices.least)

    def link_between(self, prefill: int, decode: int) -> TransferLink:
        """Return the links that a transfer between two slots takes now."""
        key = self._group_of[prefill], self._group_of[decode]
        if (kept := self._links.get(key)) is None:
            if len(self._links) >= LINKS_KEPT:
                self._links.clear()
            leaving, entering = (self.groups.positions[at].host for at in key)
            route = TransferRoute() if leaving == entering else TransferRoute(leaving, entering)
            kept = TransferLink(route, self.groups.level_of(prefill, decode))
            self._links[key] = kept
        return kept

    def add_transfer(self, route: TransferRoute, tokens: float) -> None:
        """Add tokens that have to move over a route; negative tokens have moved.

        Routes name hosts, so that begin and end of a transfer match even if workers have changed.
        """
        if route.leaving is not None:
            self._add_waiting(layout.LEAVING, route.leaving, tokens)
        if route.entering is not None:
            self._add_waiting(layout.ENTERING, route.entering, tokens)

    def waiting_by_host(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the tokens that still have to leave and to enter each host, without zeros."""
        leaving, entering = (
            {name: tokens for name, at in self._number_of.items() if (tokens := array[at])}
            | self._waiting_elsewhere[pair]
            for pair in _DIRECTIONS
            for array in [self._arrays[pair].tolist()]
        )
        return leaving, entering

    def _add_waiting(self, pair: int, host: str, tokens: float) -> None:
        number, elsewhere = self._number_of.get(host), self._waiting_elsewhere[pair]
        if number is not None:
            waiting: Any = self._arrays[pair].data  # faster than the array for single numbers
            # Rounding may end slightly below zero, and a negative queue would make a link cheaper.
            waiting[number] = max(waiting[number] + tokens, 0.0)
        elif (left := elsewhere.pop(host, 0.0) + tokens) > 0.0:
            elsewhere[host] = left

    def _prices_of(self, rule: DomainRule | None) -> LinkPrices:
        """Return the prices between groups by the rule of a request."""
        if rule is None:
            return self._usual_prices
        if (kept := self._prices_by_rule.pop(rule, None)) is None:
            kept = compute_prices(self.groups, rule)
            while len(self._prices_by_rule) >= RULES_KEPT:
                # The first entry is the least recently used: a hit pops and reinserts the rule.
                del self._prices_by_rule[next(iter(self._prices_by_rule))]
        self._prices_by_rule[rule] = kept
        return kept

    def prices_into(self, decode: int, rule: DomainRule | None = None) -> Floats:
        """Return the price of moving a token from each slot to a slot, float64[n_slots]."""
        groups = self.groups
        prices = self._prices_of(rule).price.reshape(len(groups.host), -1)
        found: Floats = prices[groups.group, int(groups.group[decode])]
        return found

    def place_pair(
        self,
        prompt: Prompt,
        masks: PairMasks,
        draw: float,
        rule: DomainRule | None = None,
        floor: tuple[int, int] | None = None,
    ) -> PairPlacement | None:
        """Return the cheapest choice, or None when nothing is eligible.

        draw: uniform in [0, 1), for ties
        rule: rule of the request about domains; None means the rules of the workers
        floor: slot, and tokens that the slot counts as holding; None means no floor
        A single compiled call under the lock of the index, with the costs of `pair_kernels`.
        """
        self.use_rule(rule)
        if floor is not None:
            self._placer.set_session_floor(*floor)
        given = self.header, prompt.block_hashes, prompt.sequence_hashes, masks.rows
        self._placer.place_with(
            self.parameters, prompt, draw, lambda plan: place_pair(plan, *given)
        )
        return self.read_choice()

    def use_rule(self, rule: DomainRule | None) -> None:
        """Let the next choice follow a rule of a request; None means the rules of the workers."""
        if rule is None and self._prices is self._usual_prices:
            return
        if (prices := self._prices_of(rule)) is not self._prices:
            self._store_prices(prices)

    def read_choice(self) -> PairPlacement | None:
        """Return the choice that a kernel just made; None when nothing was eligible."""
        result = self.result.tolist()
        decode = int(result[layout.R_DECODE])
        if decode == NO_SLOT:
            return None
        prefill = int(result[layout.R_PREFILL])
        return PairPlacement(
            None if prefill == NO_SLOT else prefill,
            decode,
            result[layout.R_LOCAL_COST],
            result[layout.R_REMOTE_COST],
            *result[layout.R_MOVE_TOKENS :],
        )
