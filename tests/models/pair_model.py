"""Naive twin of the choice of pairs: the full matrix of prefill and decode ranks."""

from math import inf
from typing import NamedTuple


class PairRank(NamedTuple):
    """Numbers of a rank in tokens; `credit` is the part of `own` that a shared cache saves."""

    left: float
    own: float
    cached: float
    live: float
    requests: float
    cache: float
    pace: float = 1.0
    weight: float = 1.0
    credit: float = 0.0


def weigh(cost, weight, block_size):
    return cost if weight == 1.0 else (cost + block_size) / weight - block_size


def prefill_cost(rank, block_size):
    return weigh((rank.left + rank.own) * rank.pace, rank.weight, block_size)


def hold_cost(rank, block_size):
    over = max(0.0, rank.live - 0.95 * rank.cache)
    return weigh(64.0 * rank.requests + 0.1 * rank.live + over, rank.weight, block_size)


def local_cost(rank, block_size):
    share = min(rank.requests / 4.0, 16.0) * min(rank.own, 16384.0)
    price = weigh((rank.left + rank.own + share) * rank.pace, rank.weight, block_size)
    return price + hold_cost(rank, block_size)


def pair_cost(prefill, decode, price, backlog, isl, block_size):
    """Return the cost of a pair.

    backlog: tokens that wait for the link between both ranks, 0 within a host
    """
    move = price * (max(0.0, isl - decode.cached) + 0.25 * backlog)
    return prefill_cost(prefill, block_size) + move + hold_cost(decode, block_size)


def cheapest(options):
    """Return the lowest finite cost of {option: cost} and the options of this cost."""
    finite = {option: cost for option, cost in options.items() if cost < inf}
    best = min(finite.values(), default=inf)
    return best, {option for option, cost in finite.items() if cost == best}
