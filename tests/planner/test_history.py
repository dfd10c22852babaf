"""Tests of a bounded table that keeps peaks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.thinned_history import ThinnedHistory, thin_table
from tests.planner.invariants import check_history


def a_table(rows, columns=3, seed=0):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(rows, columns))
    table[:, 0] = np.arange(rows)
    return table


def test_a_history_that_fits_is_unchanged():
    history = ThinnedHistory(2, 8)
    for i in range(8):
        history.add_row([i, None if i == 3 else i * 2.0])
    expected = np.array([[i, np.nan if i == 3 else i * 2.0] for i in range(8)])
    np.testing.assert_array_equal(history.copy_table(), expected)


def test_a_full_history_goes_on_with_half_of_its_rows():
    history = ThinnedHistory(2, 8)
    for i in range(9):
        history.add_row([i, 100.0 if i == 2 else 0.0])
    check_history(history)
    table = history.copy_table()
    assert len(table) == 5
    assert table[-1].tolist() == [8.0, 0.0]
    assert table[:, 1].max() == 100.0


def test_a_full_history_is_thinned_a_little_with_each_row():
    history = ThinnedHistory(3, 1000)
    table = a_table(4000)
    moved = []
    for row in table:
        before = len(history)
        history.add_row(row)
        moved.append(1 + before - len(history))
        check_history(history)
    assert max(moved) == 16
    thin = history.copy_table()
    assert 480 <= len(thin) <= 1000
    assert (thin[0, 0], thin[-1, 0]) == (0.0, 3999.0)
    for column in (1, 2):
        assert thin[:, column].max() == table[:, column].max()
        assert thin[:, column].min() == table[:, column].min()


@given(
    rows=st.integers(1, 300),
    groups=st.integers(1, 40),
    seed=st.integers(0, 5),
    holes=st.lists(st.integers(0, 299), max_size=40),
)
def test_each_column_keeps_its_least_and_greatest_known_value(rows, groups, seed, holes):
    table = a_table(rows, seed=seed)
    for hole in holes:
        table[hole % rows, 1] = np.nan
    thin = thin_table(table, groups)
    assert len(thin) <= max(2 * groups, 1)
    assert np.all(np.diff(thin[:, 0]) >= 0)
    for column in range(3):
        before, after = table[:, column], thin[:, column]
        if np.isnan(before).all():
            assert np.isnan(after).all()
            continue
        assert np.nanmin(after) == np.nanmin(before)
        assert np.nanmax(after) == np.nanmax(before)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=400), st.integers(4, 40))
def test_a_history_never_has_more_rows_than_it_may_and_keeps_the_peak(values, rows_max):
    history = ThinnedHistory(2, rows_max)
    for i, value in enumerate(values):
        history.add_row([i, value])
        check_history(history)
    table = history.copy_table()
    assert table[-1, 0] == len(values) - 1
    assert table[:, 1].max() == max(values)
