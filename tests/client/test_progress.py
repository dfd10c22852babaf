"""What a lease has to tell: in order, and no more than needed."""

from hypothesis import given
from hypothesis import strategies as st

from select_service.client.progress import BLOCKS_AT_ONCE_MAX, Progress, Verb

EVENTS = st.one_of(
    st.just(("first_token",)),
    st.tuples(st.just("tokens"), st.integers(0, 100)),
    st.just(("renew",)),
    st.just(("next",)),
)


@given(st.lists(EVENTS), st.integers(1, 20))
def test_told_is_what_happened_in_order_and_once(events, block_size):
    progress, told, tokens = Progress(block_size), [], 0
    for name, *args in events:
        found = getattr(progress, name)(*args)
        told += found or ()
        tokens += sum(args)
    progress.end("ok")
    while verbs := progress.next():
        assert len(verbs) <= BLOCKS_AT_ONCE_MAX
        told += verbs
    life = [verb for verb in told if verb is not Verb.RENEW]
    began = any(name in ("first_token", "tokens") for name, *_ in events)
    expected = [Verb.PREFILL_COMPLETE] * began
    expected += [Verb.OUTPUT_BLOCK] * (tokens // block_size)
    assert life == [*expected, Verb.FREE]


def test_a_renewal_is_not_told_beside_what_renews_as_well():
    progress = Progress(4)
    progress.renew()
    progress.first_token()
    assert progress.next() == (Verb.PREFILL_COMPLETE,)
    assert progress.next() == ()


def test_the_first_end_counts():
    progress = Progress(4)
    progress.end("failure")
    progress.end("ok")
    assert progress.outcome == "failure"
    assert [*progress.next(), *progress.next()] == [Verb.FREE]


def test_a_lost_lease_tells_nothing_but_its_end():
    progress = Progress(4)
    progress.tokens(9)
    progress.renew()
    progress.lose()
    assert progress.next() == ()
    progress.end("ok")
    assert progress.next() == (Verb.FREE,)
