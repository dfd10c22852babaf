"""Link groups: ranks that move KV blocks over equal links, and the prices between them."""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.array_types import Floats
from select_service.core.pairs.pair_layout import NO_HOST
from select_service.core.workers.transfer_prices import (
    DomainRule,
    LinkPosition,
    TransferLevel,
    level_between,
    price_between,
    price_over_network,
)

GROUPS_MAX = 1024
"""Limit of link groups of a partition: the matrix of prices has 8 MB then.  Further groups count as
the group of unknown position.
"""


class LinkGroups(NamedTuple):
    """Groups of the slots of a partition (see pair_layout).

    positions: position of each group
    speed: usual speed of a prefill rank, tokens/s; None means unknown
    group: int64[n_slots]
    host: int64[n_groups]
    price: float64[n_groups, n_groups]
    host_names: names of the known hosts, by number
    """

    positions: list[LinkPosition]
    speed: float | None
    group: npt.NDArray[np.int64]
    host: npt.NDArray[np.int64]
    price: Floats
    host_names: list[str]

    def host_name_of(self, slot: int) -> str | None:
        """Return the host of a slot; None means unknown."""
        return self.positions[int(self.group[slot])].host

    def level_of(self, prefill: int, decode: int) -> TransferLevel:
        """Return the level of a transfer between two slots."""
        return level_between(*(self.positions[int(self.group[at])] for at in (prefill, decode)))

    @property
    def unknown_links(self) -> int:
        """Number of groups with ranks whose link has no known price."""
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
    host, names = _number_hosts(found)
    return LinkGroups(found, speed, group, host, price_matrix(found, speed), names)


def price_matrix(
    positions: list[LinkPosition], speed: float | None, rule: DomainRule | None = None
) -> Floats:
    """Return the prices between all positions, float64[n, n]; arguments of `price_between`."""
    return np.array([[price_between(p, d, speed, rule) for d in positions] for p in positions])


def least_prices(price: Floats, host: npt.NDArray[np.int64]) -> Floats:
    """Return the smallest price into each group from groups on other or unknown hosts.

    price: float64[n, n];  host: int64[n], of the groups
    """
    shares_host = (host[:, None] == host) & (host != NO_HOST)
    found: Floats = np.where(shares_host, inf, price).min(axis=0)
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
