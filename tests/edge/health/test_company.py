"""Who was there at the same time."""

import contextlib

import pytest

from select_service.edge.health.company import Company


def test_the_most_that_were_there_at_once_count():
    company = Company()
    with company.visit("a") as first:
        assert (first.others, first.waited_part) == (0, 0.0)
        with company.visit("b") as elsewhere, company.visit("a") as second:
            assert (first.others, second.others, elsewhere.others) == (1, 1, 0)
        with company.visit("a") as third:
            assert third.others == 1
        assert first.waited_part == 0.5
    with company.visit("a") as alone:
        assert alone.others == 0


def test_who_fails_is_there_no_more():
    company = Company()
    with contextlib.suppress(OSError), company.visit("a"):
        raise OSError
    with company.visit("a") as alone:
        assert alone.others == 0


def test_three_others_make_an_answer_four_times_as_long():
    company = Company()
    with contextlib.ExitStack() as stack:
        visits = [stack.enter_context(company.visit("a")) for _ in range(4)]
        assert [visit.waited_part for visit in visits] == pytest.approx([0.75] * 4)
