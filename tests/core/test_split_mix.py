"""Tests of SplitMix64 on numbers and on arrays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from select_service.core.split_mix import mix_bits, mix_words


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_words_and_numbers_have_equal_hashes(numbers):
    assert mix_words(np.array(numbers, np.uint64)).tolist() == [mix_bits(n) for n in numbers]
