"""Tests of priority tiers: shed tiers, and the error of a shed client."""

import pytest

from select_service.base.errors import BadRequest, CapacityShed
from select_service.core.admission.priority_tiers import PriorityTiers
from select_service.core.decision_maker import PlacementDecision
from tests.core.admission.scenes import Scene, one_class, pinned

NAMES = ("premium", "standard", "best_effort")


@pytest.mark.parametrize(
    ("shed", "refused"),
    [
        (None, ()),
        ("best_effort", ("best_effort",)),
        ("standard", ("standard", "best_effort")),
        ("premium", NAMES),
    ],
)
def test_a_shed_tier_and_everything_below_it_is_refused(shed, refused):
    tiers = PriorityTiers(NAMES, "standard")
    tiers.set_shed_tier(shed)
    assert tuple(n for n in NAMES if tiers.is_shed(tiers.index_of(n))) == refused
    assert (tiers.shed_tier, tiers.shed_names) == (shed, refused)
    assert tiers.is_shedding == bool(refused)


def test_a_request_without_a_tier_counts_as_the_default_one():
    scene = Scene()
    scene.selector.set_shed_tier("best_effort")
    assert isinstance(scene.ask("a"), PlacementDecision)
    scene.selector.set_shed_tier("standard")
    assert isinstance(scene.ask("b"), CapacityShed)
    assert isinstance(scene.ask("c", priority_tier="premium"), PlacementDecision)


def test_a_shed_client_gets_its_tier_and_a_retry_after_of_30_seconds():
    scene = Scene()
    scene.selector.set_shed_tier("standard")
    error = scene.ask("a", priority_tier="best_effort")
    assert (error.status, error.code) == (503, "capacity_shed")
    assert str(error) == "capacity_shed: tier=best_effort"
    assert error.retry_after_s == 30
    assert scene.gate.tally.shed_tiers == {"best_effort": 1}
    assert scene.gate.tally.outcome_counts()["shed"] == scene.gate.tally.n_rejected == 1


def test_an_unknown_tier_is_a_bad_request_that_lists_the_known_ones():
    scene = Scene()
    error = scene.ask("a", priority_tier="gold")
    assert isinstance(error, BadRequest)
    assert str(error) == (
        "priority tier `gold` is unknown; the tiers are premium, standard, best_effort"
    )
    with pytest.raises(BadRequest, match="`gold` is unknown"):
        scene.selector.set_shed_tier("gold")
    assert scene.selector.get_admission_state().shed_tier is None


def test_shedding_is_checked_first():
    scene = Scene(workers=0)
    scene.selector.set_shed_tier("premium")
    assert isinstance(scene.ask("a"), CapacityShed)


def test_queued_requests_of_a_shed_tier_are_rejected_at_once():
    scene = Scene(one_class())
    scene.fill(1)
    scene.ask("high", priority_tier="premium")
    scene.ask("low", priority_tier="best_effort")
    state = scene.selector.set_shed_tier("standard")
    assert isinstance(scene.outcomes["low"], CapacityShed)
    assert list(scene.tickets) == ["high"]
    assert (state.shed_tier, state.shed_tiers) == ("standard", ["standard", "best_effort"])
    assert state.waiting_requests == 1


def test_ending_the_shedding_wakes_the_queue():
    scene = Scene(one_class())
    scene.fill(1)
    scene.ask("a", priority_tier="premium")
    scene.selector.set_shed_tier("best_effort")
    scene.serve()
    before = scene.wakes
    scene.selector.set_shed_tier(None)
    assert scene.wakes == before + 1


def test_a_reservation_on_a_rank_chosen_by_the_caller_is_not_shed():
    scene = Scene()
    scene.selector.set_shed_tier("premium")
    scene.fill(1)
    assert next(scene.selector.inspection.partition_loads()).loads[0].active_requests == 1


def test_a_pinned_request_is_shed_too():
    scene = Scene()
    scene.selector.set_shed_tier("standard")
    assert isinstance(scene.ask("a", **pinned(1)), CapacityShed)
