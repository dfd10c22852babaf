"""Which lines of the audit log are written, and what is counted instead."""

import pytest
from msgspec import UNSET

from select_service.access import audit
from select_service.access.audit import AuditBudget, AuditLine


def a_line(key="ops", status=200, operation="delete_worker", code=UNSET):
    given = {"at": "", "source": None, "method": "DELETE", "path": "/"}
    return AuditLine(key=key, operation=operation, status=status, code=code, **given)


@pytest.mark.parametrize("seconds", [1, 60, 3600])
def test_a_key_has_so_many_lines_at_once_and_so_many_a_second(seconds):
    budget = AuditBudget()
    written = sum(budget.admit(a_line(), 0.0) for _ in range(10_000))
    assert written == audit.LINES_AT_ONCE
    steps = 20 * seconds
    written = sum(budget.admit(a_line(), 1 + step / 20) for step in range(steps))
    assert written == pytest.approx((seconds + 1) * audit.LINES_PER_S, abs=2)
    assert budget.summed == 10_000 - audit.LINES_AT_ONCE + steps - written


def test_a_fleet_can_be_registered_at_once():
    budget = AuditBudget()
    assert all(budget.admit(a_line(operation="register_worker"), 0.0) for _ in range(4096))


def test_what_is_counted_is_written_after_a_minute_by_kind():
    budget = AuditBudget()
    for _ in range(audit.LINES_AT_ONCE + 3):
        budget.admit(a_line(), 0.0)
    budget.admit(a_line(status=404, code="not_found"), 0.0)
    assert not list(budget.due(audit.SUMMED_S - 0.1))
    sums = list(budget.due(audit.SUMMED_S))
    assert [(each.status, each.code, each.count) for each in sums] == [
        (200, UNSET, 3),
        (404, "not_found", 1),
    ]
    assert not list(budget.due(2 * audit.SUMMED_S))


def test_a_refusal_that_came_once_is_in_no_sum():
    budget = AuditBudget()
    assert budget.admit(a_line("web", 403, code="forbidden"), 0.0)
    assert not list(budget.due(audit.SUMMED_S))
    assert budget.admit(a_line("web", 403, code="forbidden"), audit.SUMMED_S)


def test_keys_and_kinds_are_bounded():
    budget = AuditBudget()
    for number in range(3 * audit.KEYS_MAX):
        budget.admit(a_line(f"k{number}"), 0.0)
    assert len(budget._left) <= audit.KEYS_MAX
    for number in range(3 * audit.SUMS_MAX):
        budget.count(a_line(f"k{number}"), 0.0)
    assert len(budget._sums) == audit.SUMS_MAX + 1
    sums = list(budget.due(0.0, is_end=True))
    assert sum(each.count for each in sums) == 3 * audit.SUMS_MAX
    assert (sums[-1].key, sums[-1].count) == (audit.OTHERS, 2 * audit.SUMS_MAX)


def test_one_key_needs_hours_to_fill_the_files():
    """With lines as long as there are."""
    longest = audit.PATH_CHARS_MAX + audit.BODY_BYTES_MAX * 2 + 512
    files = 8 * (64 << 20)
    assert (files - audit.LINES_AT_ONCE * longest) / (longest * audit.LINES_PER_S) > 6 * 3600
