"""Tests of the probation of a capacity estimate, by invariants of every history."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from select_service.core.health.degradation.capacity_probation import (
    PROVEN_S,
    STALE_S,
    CapacityProbation,
)

LOOKS = st.lists(
    st.tuples(st.booleans(), st.sampled_from(["", "", "", "booked", "ended"])).flatmap(
        lambda each: st.integers(1, 90).map(lambda times: [each] * times)
    ),
    max_size=30,
).map(lambda runs: [look for run in runs for look in run])
"""(sheds, other event) at each second."""


def run_probation(looks):
    """Return (sheds, booked_at, ended_at, is_on) at each second."""
    trial, booked_at, ended_at, seen = CapacityProbation(), -inf, -inf, []
    for now, (sheds, what) in enumerate(looks):
        booked_at = now if what == "booked" else booked_at
        ended_at = now if what == "ended" else ended_at
        trial.update_state(
            is_shedding=sheds, booked_at=booked_at, ended_at=ended_at, now=float(now)
        )
        seen.append((sheds, booked_at, ended_at, trial.is_active))
    return seen


@given(LOOKS)
def test_probation_begins_only_after_a_quiet_time(looks):
    seen = run_probation(looks)
    off_for = 0
    for now, (_, _, _, is_on) in enumerate(seen):
        off_for = 0 if is_on else off_for + 1
        last = seen[max(0, now - int(STALE_S) + 1) : now + 1]
        was_quiet = all(sheds for sheds, *_ in last) and now - seen[now][1] >= STALE_S <= now
        if is_on and not seen[now - 1][3]:
            assert was_quiet
        assert not (was_quiet and off_for > STALE_S)


@given(LOOKS)
def test_probation_ends_soon_after_a_request(looks):
    begun = first = inf
    for now, (_, booked_at, ended_at, is_on) in enumerate(run_probation(looks)):
        if not is_on:
            begun = first = inf
            continue
        begun = min(begun, now)
        if booked_at >= begun:
            first = min(first, booked_at)
        assert now - first < PROVEN_S
        assert ended_at <= first
