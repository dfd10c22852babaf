from math import ceil

import pytest

from select_service.core.assumed.assumed_size import UNDECLARED_TOKENS, AssumedSize

FIRST = UNDECLARED_TOKENS // 16


def test_a_declared_size_is_kept():
    size = AssumedSize(1000, 16)
    for over in (True, False):
        size.learn(over, True)
    assert size.blocks == 1000


@pytest.mark.parametrize("declared", [None, 0])
def test_an_undeclared_size_begins_large(declared):
    assert AssumedSize(declared, 16).blocks == FIRST
    assert AssumedSize(declared, UNDECLARED_TOKENS * 2).blocks == 1


def test_too_long_claims_shrink_and_right_ones_grow_a_full_size():
    size = AssumedSize(None, 16)
    size.learn(True, True)
    assert size.blocks == ceil(FIRST * 0.97)
    size.learn(False, False)
    assert size.blocks == ceil(FIRST * 0.97)
    size.learn(False, True)
    assert size.blocks == ceil(FIRST * 0.97 * 1.003)


def test_the_learned_size_has_limits():
    size = AssumedSize(None, 16)
    for _ in range(1000):
        size.learn(True, True)
    assert size.blocks == ceil(FIRST * 0.05)
    for _ in range(5000):
        size.learn(False, True)
    assert size.blocks == ceil(FIRST * 1.5)
