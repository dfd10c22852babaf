"""Tests of the progress that a lease reports: in order, and no more than needed."""

from hypothesis import given
from hypothesis import strategies as st

from select_service.client.lease_progress import (
    CONCURRENT_BLOCKS_MAX,
    LeaseProgress,
    ReservationVerb,
)

EVENTS = st.one_of(
    st.just(("record_first_token",)),
    st.tuples(st.just("record_tokens"), st.integers(0, 100)),
    st.just(("request_renewal",)),
    st.just(("take_verbs",)),
)


@given(st.lists(EVENTS), st.integers(1, 20))
def test_progress_is_reported_in_order_and_once(events, block_size):
    progress, told, tokens = LeaseProgress(block_size), [], 0
    for name, *args in events:
        found = getattr(progress, name)(*args)
        told += found or ()
        tokens += sum(args)
    progress.record_end("ok")
    while verbs := progress.take_verbs():
        assert len(verbs) <= CONCURRENT_BLOCKS_MAX
        told += verbs
    life = [verb for verb in told if verb is not ReservationVerb.RENEW]
    began = any(name in ("record_first_token", "record_tokens") for name, *_ in events)
    expected = [ReservationVerb.PREFILL_COMPLETE] * began
    expected += [ReservationVerb.OUTPUT_BLOCK] * (tokens // block_size)
    assert life == [*expected, ReservationVerb.FREE]


def test_a_call_that_renews_replaces_a_renewal():
    progress = LeaseProgress(4)
    progress.request_renewal()
    progress.record_first_token()
    assert progress.take_verbs() == (ReservationVerb.PREFILL_COMPLETE,)
    assert progress.take_verbs() == ()


def test_the_first_end_counts():
    progress = LeaseProgress(4)
    progress.record_end("failure")
    progress.record_end("ok")
    assert progress.outcome == "failure"
    assert [*progress.take_verbs(), *progress.take_verbs()] == [ReservationVerb.FREE]


def test_a_lost_lease_reports_only_its_end():
    progress = LeaseProgress(4)
    progress.record_tokens(9)
    progress.request_renewal()
    progress.mark_lost()
    assert progress.take_verbs() == ()
    progress.record_end("ok")
    assert progress.take_verbs() == (ReservationVerb.FREE,)
