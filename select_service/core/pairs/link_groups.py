"""Link groups: ranks that move KV blocks over equal links, and the prices between them."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.array_types import Floats
from select_service.core.pairs import link_price_kernels as kernels
from select_service.core.pairs.pair_layout import NO_HOST
from select_service.core.workers.transfer_prices import (
    UNKNOWN_PRICE,
    DomainRule,
    LinkPosition,
    TransferLevel,
    level_between,
    price_over_network,
)

GROUPS_MAX = 1024
"""Limit of link groups of a partition: the matrix of prices has 8 MB then.  Further groups count as
the group of unknown position.
"""


class LinkPrices(NamedTuple):
    """Prices between link groups by a rule, as the kernel reads them (pair_layout).

    price: float64[n_groups * n_groups]
    least: float64[n_groups]
    """

    price: Floats
    least: Floats


class LinkGroups(NamedTuple):
    """Groups of the slots of a partition (see pair_layout).

    positions: position of each group
    speed: usual speed of a prefill rank, tokens/s; None means unknown
    group: int64[n_slots]
    host: int64[n_groups]
    host_names: names of the known hosts, by number
    """

    positions: list[LinkPosition]
    speed: float | None
    group: npt.NDArray[np.int64]
    host: npt.NDArray[np.int64]
    host_names: list[str]

    def host_name_of(self, slot: int) -> str | None:
        """Return the host of a slot; None means unknown."""
        return self.positions[int(self.group[slot])].host

    def level_of(self, prefill: int, decode: int) -> TransferLevel:
        """Return the level of a transfer between two slots."""
        return level_between(*(self.positions[int(self.group[at])] for at in (prefill, decode)))

    @property
    def unknown_links(self) -> int:
        """Number of groups with ranks on a link without a known price."""
        in_use = set(self.group.tolist())
        return sum(
            price_over_network(position, self.speed) is None
            for at, position in enumerate(self.positions)
            if at in in_use
        )


def make_link_groups(
    positions: Mapping[int, LinkPosition], n_slots: int, speed: float | None
) -> LinkGroups:
    """Return the groups of all slots.  O(slots + groups^2)

    positions: position by slot; other slots are empty
    speed: usual speed of a prefill rank, tokens/s; None means unknown
    """
    numbers: dict[LinkPosition, int] = {LinkPosition(): 0}
    group = np.zeros(n_slots, np.int64)
    for slot, position in positions.items():
        # Beyond the limit, which bounds the matrix of prices, ranks count as unknown positions.
        if position not in numbers and len(numbers) < GROUPS_MAX:
            numbers[position] = len(numbers)
        group[slot] = numbers.get(position, 0)
    found = list(numbers)
    return LinkGroups(found, speed, group, *_number_hosts(found))


def compute_prices(groups: LinkGroups, rule: DomainRule | None = None) -> LinkPrices:
    """Return the prices between all groups (`price_between`).  O(groups^2), compiled

    rule: rule of a request; None means the rules of the workers
    """
    n = len(groups.positions)
    numbers = np.full((kernels.N_NUMBERS, n), kernels.NO_RULE, np.int64)
    parts = np.zeros((kernels.N_PARTS, n))
    numbers[kernels.HOST] = groups.host
    kinds: dict[str, int] = {}
    for at, position in enumerate(groups.positions):
        network = price_over_network(position, groups.speed)
        # A link of unknown speed may still be the slower one of a move.
        parts[kernels.NETWORK_PRICE, at] = UNKNOWN_PRICE if network is None else network
        ruling = position.rule if rule is None else rule
        if ruling is not None:
            numbers[kernels.RULE_KIND, at] = kinds.setdefault(ruling.domain, len(kinds))
            numbers[kernels.IS_REQUIRED, at] = ruling.is_required
            parts[kernels.PREFERENCE, at] = ruling.preference
    found = LinkPrices(np.empty(n * n), np.empty(n))
    kernels.fill_prices(numbers, parts, _number_domains(groups.positions, kinds), *found)
    return found


def _number_domains(
    positions: list[LinkPosition], kinds: Mapping[str, int]
) -> npt.NDArray[np.int64]:
    """Return the number of each group's domain by kind, int64[kinds, n]; NO_DOMAIN if unknown."""
    numbers: dict[tuple[str, str], int] = {}
    found = np.full((len(kinds), len(positions)), kernels.NO_DOMAIN, np.int64)
    for at, position in enumerate(positions):
        for each in position.domains:
            if (kind := kinds.get(each[0])) is not None:
                found[kind, at] = numbers.setdefault(each, len(numbers))
    return found


def circle_hosts(host: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return for each group the next group of the same known host, in a circle; else the group."""
    following, first, last = np.arange(len(host)), dict[int, int](), dict[int, int]()
    for at, number in enumerate(host.tolist()):
        if number != NO_HOST:
            following[last.get(number, at)] = at
            following[at] = first.setdefault(number, at)
            last[number] = at
    return following


def _number_hosts(positions: list[LinkPosition]) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the host number of each group, NO_HOST for unknown hosts, and the host names."""
    numbers: dict[str, int] = {}
    host = np.full(len(positions), NO_HOST, np.int64)
    for at, position in enumerate(positions):
        if position.host is not None:
            host[at] = numbers.setdefault(position.host, len(numbers))
    return host, list(numbers)
