"""Deterministic pseudo-random numbers for phases of checks and generated prompts."""

from collections.abc import Iterator

from select_service.core.identity import Rank
from select_service.core.split_mix import mix_bits


def phase_of(rank: Rank) -> float:
    """Return the phase of a rank within the interval, 0 to 1; ranks are spread evenly."""
    return mix_bits(mix_bits(rank.worker_id) ^ rank.dp_rank) / 2.0**64


def draw_numbers(seed: int, low: int, high: int) -> Iterator[int]:
    """Yield pseudo-random numbers from low to high - 1 without end."""
    while True:
        seed = mix_bits(seed)
        yield low + seed % (high - low)
