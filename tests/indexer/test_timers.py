"""Tests of timers against a plain dictionary of times."""

from hypothesis import given
from hypothesis import strategies as st

from indexer.sockets.listener_timers import ListenerTimers

STEPS = st.lists(
    st.tuples(st.integers(0, 4), st.none() | st.integers(0, 20)) | st.integers(0, 20), max_size=40
)


@given(STEPS)
def test_due_owners_and_waiting_times_match_a_dictionary(steps):
    timers, twin = ListenerTimers(), {}
    for step in steps:
        if isinstance(step, tuple):
            owner, due = step
            timers.set_time(owner, due)
            twin.pop(owner, None)
            if due is not None:
                twin[owner] = due
        else:
            wanted = sorted(owner for owner, due in twin.items() if due <= step)
            taken = timers.take_due(step, 2)
            assert len(taken) == min(2, len(wanted))
            assert set(taken) <= set(wanted)
            assert not taken or max(map(twin.get, taken)) <= min(
                (twin[owner] for owner in wanted if owner not in taken), default=20
            )
            for owner in taken:
                del twin[owner]
        timers.check_invariants()
        patience = timers.seconds_until_due(0)
        assert (patience is None) == (not twin)
        assert patience is None or patience <= min(twin.values())
    assert sorted(timers.take_due(100, 100)) == sorted(twin)
    assert timers.seconds_until_due(0) is None


def test_equal_times_need_no_order_of_their_owners():
    timers = ListenerTimers()
    for owner in (object(), object()):
        timers.set_time(owner, 1.0)
    assert len(timers.take_due(1.0, 5)) == 2
