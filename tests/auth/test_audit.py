"""Tests of the lines of the audit log, and of the events that are only counted."""

import pytest
from msgspec import UNSET

from select_service.auth import audit_lines
from select_service.auth.audit_lines import AuditBudget, AuditLine


def a_line(key="ops", status=200, operation="delete_worker", code=UNSET):
    given = {"at": "", "source": None, "method": "DELETE", "path": "/"}
    return AuditLine(key=key, operation=operation, status=status, code=code, **given)


@pytest.mark.parametrize("seconds", [1, 60, 3600])
def test_a_key_has_so_many_lines_at_once_and_so_many_a_second(seconds):
    budget = AuditBudget()
    written = sum(budget.admit_line(a_line(), 0.0) for _ in range(10_000))
    assert written == audit_lines.LINES_AT_ONCE
    steps = 20 * seconds
    written = sum(budget.admit_line(a_line(), 1 + step / 20) for step in range(steps))
    assert written == pytest.approx((seconds + 1) * audit_lines.LINES_PER_S, abs=2)
    assert budget.n_summed == 10_000 - audit_lines.LINES_AT_ONCE + steps - written


def test_a_fleet_can_be_registered_at_once():
    budget = AuditBudget()
    assert all(budget.admit_line(a_line(operation="register_worker"), 0.0) for _ in range(4096))


def test_suppressed_lines_are_summed_up_by_kind_after_a_minute():
    budget = AuditBudget()
    for _ in range(audit_lines.LINES_AT_ONCE + 3):
        budget.admit_line(a_line(), 0.0)
    budget.admit_line(a_line(status=404, code="not_found"), 0.0)
    assert not list(budget.take_due_sums(audit_lines.SUM_INTERVAL_S - 0.1))
    sums = list(budget.take_due_sums(audit_lines.SUM_INTERVAL_S))
    assert [(each.status, each.code, each.count) for each in sums] == [
        (200, UNSET, 3),
        (404, "not_found", 1),
    ]
    assert not list(budget.take_due_sums(2 * audit_lines.SUM_INTERVAL_S))


def test_a_refusal_that_came_once_is_in_no_sum():
    budget = AuditBudget()
    assert budget.admit_line(a_line("web", 403, code="forbidden"), 0.0)
    assert not list(budget.take_due_sums(audit_lines.SUM_INTERVAL_S))
    assert budget.admit_line(a_line("web", 403, code="forbidden"), audit_lines.SUM_INTERVAL_S)


def test_keys_and_kinds_are_bounded():
    budget = AuditBudget()
    for number in range(3 * audit_lines.KEYS_MAX):
        budget.admit_line(a_line(f"k{number}"), 0.0)
    assert len(budget._left) <= audit_lines.KEYS_MAX
    for number in range(3 * audit_lines.SUMS_MAX):
        budget.count_line(a_line(f"k{number}"), 0.0)
    assert len(budget._sums) == audit_lines.SUMS_MAX + 1
    sums = list(budget.take_due_sums(0.0, is_end=True))
    assert sum(each.count for each in sums) == 3 * audit_lines.SUMS_MAX
    assert (sums[-1].key, sums[-1].count) == (audit_lines.OTHER_KINDS, 2 * audit_lines.SUMS_MAX)


def test_one_key_needs_hours_to_fill_the_files():
    """The lines have the greatest possible length."""
    longest = audit_lines.PATH_CHARS_MAX + audit_lines.BODY_BYTES_MAX * 2 + 512
    files = 8 * (64 << 20)
    assert (files - audit_lines.LINES_AT_ONCE * longest) / (
        longest * audit_lines.LINES_PER_S
    ) > 6 * 3600
