"""Tests of the readers of number lists against a regular expression, at any place in a buffer."""

import re
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from select_service.fastpath.parsing.byte_kernels import WINDOW
from select_service.fastpath.parsing.number_list_kernels import LIST_SPARE
from tests.fastpath.list_kernels import read_hashes, read_tokens

LONGEST = 200
HASHES = np.zeros(LONGEST + LIST_SPARE, np.uint64)
TOKENS = np.zeros(LONGEST + LIST_SPARE, np.uint32)
NUMBER = "(?:0|-?[1-9][0-9]*)"
ANY_LIST = re.compile(f"(?:{NUMBER}(?:,{NUMBER})*|{NUMBER}(?:, {NUMBER})+)]")
NOTHING = -1

EDGES = (
    *("0", "-0", "00", "01", "-01", "-", "--1", "1-", "+1", "1.0", "1e2", "", " 1", "1 ", "\xb21"),
    *("9", "10", "99999999", "100000000", "4294967295", "4294967296", "-1", "-9", "-10"),
    *(str(10**k + step) for k in (7, 15, 16, 17, 18, 19, 20) for step in (-1, 0, 1)),
    *(str(-(10**k) + step) for k in (15, 16, 17, 18, 19, 20) for step in (-1, 0, 1)),
    *(str(2**63 + step) for step in (-1, 0, 1)),
    *(str(-(2**63) + step) for step in (-1, 0, 1)),
    *(str(2**64 + step) for step in (-1, 0, 1)),
    *(str(sign * k * 10**16 + step) for sign in (1, -1) for k in (921, 922, 1843, 1844, 1845)
      for step in (-1, 0, 1)),
    *("18446744073709551609", "18446744073709551620", "19999999999999999999", "-" + "9" * 19),
    *("20000000000000000000", "28446744073709551615", "99999999999999999999", "9" * 21, "1" * 40),
    *("0" * 20, "0" + "1" * 18, "-0" + "1" * 17, "-" + "0" * 17, "1" * 9 + "-" + "1" * 9),
    *("1" * 16 + " " + "1" * 2, "1" * 17 + "\n", "\t" + "1" * 17, "]" + "1" * 17, "/" + "1" * 17),
    *(":" + "1" * 17, "1" * 17 + ":", "1" * 5 + "]", "\xff" + "1" * 17, "1" * 17 + "\xff"),
)  # fmt: skip
PLAIN = ("18446744073709551614", "-9223372036854775807", "1234567", "12345678901234567", "8")
SURROUNDINGS = (b"7" * 200, b'"' * 200, b", 1" * 70, b"]" * 200, b"-" * 200, b"\xff" * 200)


def expected(text: bytes, lowest: int, highest: int) -> tuple[int, list[int]]:
    """Return the size of the list in bytes and the unsigned numbers, or NOTHING if invalid."""
    found = ANY_LIST.match(text.decode("latin-1"))
    numbers = [] if found is None else [int(each) for each in found[0][:-1].split(",")]
    if found is None or not all(lowest <= each <= highest for each in numbers):
        return NOTHING, []
    return len(found[0]), [each % 2**64 for each in numbers]


def check(text: bytes, before: bytes = b"[" * WINDOW, after: bytes = b"") -> bool:
    """Compare both readers with the expression; return whether the text is a list of hashes."""
    data = np.frombuffer(before + text + after, np.uint8)
    at, end = len(before), len(before) + len(text)
    for reader, out, bounds in (
        (read_hashes, HASHES, (-(2**63), 2**64 - 1)),
        (read_tokens, TOKENS, (0, 10**8 - 1)),
    ):
        size, numbers = expected(text, *bounds)
        n, behind = reader(data, at, end, out)
        assert n == (len(numbers) or NOTHING), text
        assert behind == at + max(size, 0), text
        assert out[: max(n, 0)].tolist() == numbers, text
    return bool(expected(text, -(2**63), 2**64 - 1)[1])


def lists(number: str) -> Iterator[str]:
    """Yield lists with the number in every place of a group of four."""
    for gap in (",", ", "):
        for n in range(1, 10):
            for place in range(n):
                others = [PLAIN[(place + k) % len(PLAIN)] for k in range(n)]
                yield gap.join([*others[:place], number, *others[place + 1 :]])


@pytest.mark.parametrize("number", EDGES)
def test_a_number_is_read_or_refused_in_every_place(number):
    for text in lists(number):
        check(text.encode("latin-1") + b"]")
        check(text.encode("latin-1") + b"],1]}", SURROUNDINGS[0], SURROUNDINGS[3])


def test_numbers_of_every_length_are_read_across_windows_and_at_both_ends_of_the_buffer():
    for digits in range(1, 21):
        number = "1" + "7" * (digits - 1)
        for gap in (",", ", "):
            for skipped in range(WINDOW + 2):
                text = gap.join(["1" * (skipped % 19 + 1)] * (skipped // 19) + [number] * 9)
                assert check(text.encode() + b"]")
                assert check(text.encode() + b"]}", b"[" * (WINDOW + skipped), b"]" * skipped)


@pytest.mark.parametrize("surrounding", SURROUNDINGS)
def test_bytes_around_a_list_change_nothing(surrounding):
    for gap in (",", ", "):
        for n in range(1, 12):
            text = gap.join(PLAIN[k % len(PLAIN)] for k in range(n)).encode()
            assert check(text + b"]", surrounding, surrounding)
            assert not check(text, surrounding, surrounding)
            assert not check(text + b"}", surrounding, surrounding)


def test_one_gap_unlike_the_others_is_refused():
    for n in range(2, 12):
        for gap, other in ((",", ", "), (", ", ","), (", ", ",  "), (",", " ,"), (",", ",,")):
            for place in range(n - 1):
                gaps = [gap] * (n - 1)
                gaps[place] = other
                text = "".join(a + b for a, b in zip(["7" * 19] * n, [*gaps, "]"], strict=True))
                # With a single gap there is no other gap to differ from.
                assert check(text.encode()) == (n == 2 and other in (",", ", "))


@pytest.mark.parametrize("n", [LONGEST, LONGEST + LIST_SPARE + 1])
def test_a_list_longer_than_the_array_is_refused(n):
    data = np.frombuffer(b"[" * WINDOW + b"1," * (n - 1) + b"1]", np.uint8)
    for reader, out in ((read_hashes, HASHES), (read_tokens, TOKENS)):
        assert reader(data, WINDOW, len(data), out)[0] == (n if n == LONGEST else NOTHING)


HASHES_ST = st.integers(-(2**63) - 5, 2**64 + 5) | st.integers(-(10**9), 10**9)
ODD = "0123456789-, ]\n:/+.\xff"


@settings(max_examples=1500, deadline=None)
@given(st.lists(HASHES_ST | st.integers(0, 10**9), max_size=40), st.booleans(), st.randoms())
def test_lists_changed_at_random_are_read_as_by_the_expression(numbers, spaced, random: Random):
    text = (", " if spaced else ",").join(map(str, numbers)) + "]"
    check(text.encode())
    for _ in range(random.randrange(3)):
        place = random.randrange(len(text) + 1)
        text = text[:place] + random.choice(ODD) + text[place + random.randrange(2) :]
        check(text.encode("latin-1"), random.choice(SURROUNDINGS), random.choice(SURROUNDINGS))
