"""Many that are slow together, next to a model that looks at everything."""

from hypothesis import given
from hypothesis import strategies as st

from select_service.core.health.common_mode import CommonMode
from select_service.core.identity import Rank

WINDOW_S = 30.0
RESULTS = st.lists(
    st.tuples(st.integers(0, 6), st.booleans(), st.sampled_from([0.0, 1.0, 5.0, 20.0, 31.0])),
    max_size=60,
)


@given(RESULTS)
def test_more_than_half_of_the_latest_results_and_at_least_three(results):
    mode, last, now = CommonMode(WINDOW_S), {}, 0.0
    for number, is_slow, wait in results:
        now += wait
        rank = Rank(number, 0)
        last[rank] = (now, is_slow)
        last = {r: (at, slow) for r, (at, slow) in last.items() if now - at <= WINDOW_S}
        slow = {r for r, (_, s) in last.items() if s}
        expected = is_slow and len(slow) >= 3 and 2 * len(slow) > len(last)
        assert mode.checked(rank, is_slow, now) == expected
        assert set(mode.slow_ranks()) == slow
        mode.check_invariants()


def test_who_leaves_is_not_counted():
    mode = CommonMode(WINDOW_S)
    for number in range(3):
        mode.checked(Rank(number, 0), True, 0.0)
    mode.leave(Rank(0, 0))
    mode.leave(Rank(9, 9))
    assert not mode.checked(Rank(1, 0), True, 1.0)
    mode.check_invariants()
