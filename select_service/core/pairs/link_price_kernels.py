"""Prices of moving a token between all link groups of a partition.

One pass over the matrix, as a request may bring a rule of its own: in Python a thousand groups
would take seconds.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import compiled
from select_service.core.pairs.pair_layout import NO_HOST
from select_service.core.workers.transfer_prices import HOST_PRICE

HOST, RULE_KIND, IS_REQUIRED, N_NUMBERS = range(4)
"""Rows of `numbers`: the host or NO_HOST, the kind of domain that the rule of a group is about or
NO_RULE, and whether the rule is required.
"""
NETWORK_PRICE, PREFERENCE, N_PARTS = range(3)
"""Rows of `parts`: the finite price over the network link, and the preference of the rule."""
NO_DOMAIN = -1
NO_RULE = -1


@compiled("void(int64[:, ::1], float64[:, ::1], int64[:, ::1], float64[::1], float64[::1])")
def fill_prices(numbers, parts, domains, price, least):
    """Fill the prices of `price_between` for n groups.

    numbers, parts: int64[N_NUMBERS, n] and float64[N_PARTS, n]
    domains: int64[kinds, n], number of the group's domain of each kind or NO_DOMAIN
    price: float64[n * n], filled, by prefill and decode
    least: float64[n], filled with the least price into a group from other or unknown hosts
    """
    n, host = numbers.shape[1], numbers[HOST]
    least[:] = np.inf
    for prefill in range(n):
        for decode in range(n):
            saved, is_allowed = 0.0, True
            for ruling in (prefill, decode):
                kind = numbers[RULE_KIND, ruling]
                if kind == NO_RULE:
                    continue
                own = domains[kind, prefill]
                if own != NO_DOMAIN and own == domains[kind, decode]:
                    saved = max(saved, parts[PREFERENCE, ruling])
                elif numbers[IS_REQUIRED, ruling]:
                    is_allowed = False
            found = max(parts[NETWORK_PRICE, prefill], parts[NETWORK_PRICE, decode])
            found *= 1.0 - min(saved, 1.0)
            shares_host = host[prefill] != NO_HOST and host[prefill] == host[decode]
            if shares_host:
                found = min(found, HOST_PRICE)
            if not is_allowed:
                found = np.inf
            price[prefill * n + decode] = found
            if not shares_host:
                least[decode] = min(least[decode], found)
