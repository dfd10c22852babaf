"""Numbers that look random and are always the same: phases of checks, made up prompts."""

from collections.abc import Iterator

from select_service.core.identity import Rank

_64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mixed(number: int) -> int:
    """64 bits.  Source: splitmix64, https://prng.di.unimi.it/splitmix64.c"""
    z = (number + _GOLDEN) & _64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _64
    return z ^ (z >> 31)


def phase(rank: Rank) -> float:
    """Where in an interval the rank has its turn, 0 to 1: ranks are spread evenly."""
    return mixed(mixed(rank.worker_id) ^ rank.dp_rank) / 2.0**64


def drawn(seed: int, low: int, high: int) -> Iterator[int]:
    """Without end, each from low to high - 1."""
    while True:
        seed = mixed(seed)
        yield low + seed % (high - low)
