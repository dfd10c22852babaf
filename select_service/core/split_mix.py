"""SplitMix64, a 64-bit hash function of numbers and of arrays.

Source: https://prng.di.unimi.it/splitmix64.c
"""

import numpy as np
import numpy.typing as npt

_64 = (1 << 64) - 1
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GOLDEN_WORD, _MIX_1_WORD, _MIX_2_WORD = np.array([_GOLDEN, _MIX_1, _MIX_2], np.uint64)

Words = npt.NDArray[np.uint64]


def mix_bits(number: int) -> int:
    """Return the hash of a number, the first output for this seed."""
    z = (number + _GOLDEN) & _64
    z = (z ^ (z >> 30)) * _MIX_1 & _64
    z = (z ^ (z >> 27)) * _MIX_2 & _64
    return z ^ (z >> 31)


def mix_words(words: Words) -> Words:
    """Return the hashes of words, equal to those of `mix_bits`."""
    return finish_words(words + _GOLDEN_WORD)


def finish_words(words: Words) -> Words:
    """Return the finaliser of each word, the hash without its first addition."""
    words = (words ^ (words >> np.uint64(30))) * _MIX_1_WORD
    words = (words ^ (words >> np.uint64(27))) * _MIX_2_WORD
    return words ^ (words >> np.uint64(31))
