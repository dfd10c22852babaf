"""Tests of bookings of earlier selections by id, with real parts and against a naive twin."""

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from select_service.base.errors import Conflict, NoEligibleRank, NotFound
from select_service.core.identity import Rank
from select_service.core.placement.pending_selections import SelectionCacheLimits
from select_service.core.placement.router_config import RouterConfig
from select_service.core.selector import SelectorCore
from select_service.schemas.reservations import Reservation, ReservationRequest
from tests.builders import a_reservation, a_select, a_select_and_reserve, a_selector, a_worker
from tests.builders.hypothesis_profiles import explored
from tests.builders.selector_scenes import load_of, store

IDLE = (0, 0, 0)


@pytest.fixture
def selector() -> SelectorCore:
    return a_fleet()


def a_fleet(config: RouterConfig | None = None) -> SelectorCore:
    selector: SelectorCore = a_selector(config)
    for worker_id in (1, 2):
        selector.register_worker(a_worker(worker_id))
    return selector


def select(selector: SelectorCore, now: float = 0.0, worker_id: int = 2, **fields: Any) -> Any:
    pin = {"worker_id": worker_id, "dp_rank": 0}
    outcome: Any = selector.select(a_select(**{"pinned_worker": pin, **fields}), now)
    return outcome.selection


def replay(selector: SelectorCore, now: float = 1.0, **fields: Any) -> Reservation:
    body = {"model_name": "m", "selection_id": "s", **fields}
    return selector.reserve(msgspec.convert(body, ReservationRequest), now)


def test_the_choice_is_booked_as_it_was_made(selector: SelectorCore) -> None:
    store(selector, Rank(2, 0), 8)
    selection = select(selector, selection_id="s", tokens=21)
    assert load_of(selector, 2) == IDLE
    # Load and cache are not read again, and the fields of the booking do not count.
    selector.reserve(a_reservation("other", 2, tokens=40), 0.5)
    held = load_of(selector, 2)
    found = replay(selector, token_ids=[1, 2, 3], effective_prefill_tokens=1)
    assert (found.worker_id, found.dp_rank, found.reservation_id) == (2, 0, "s")
    booked = [after - before for after, before in zip(load_of(selector, 2), held, strict=True)]
    assert booked[0] == selection.effective_prefill_tokens == 13
    assert booked[2] == 1
    selector.free_reservation("s", 2.0)
    assert load_of(selector, 2) == held
    selector.check_invariants()


def test_a_replay_is_the_same_booking_as_one_in_one_step() -> None:
    pin = {"pinned_worker": {"worker_id": 2, "dp_rank": 0}, "expected_output_tokens": 7}
    rows = []
    for in_one_step in (True, False):
        selector = a_fleet()
        store(selector, Rank(2, 0), 8)
        if in_one_step:
            selector.select_and_reserve(a_select_and_reserve(21, reservation_id="s", **pin), 1.0)
        else:
            select(selector, selection_id="s", tokens=21, expected_output_tokens=7)
            replay(selector)
        row = selector.inspection.get_reservation("s", 1.0)
        rows.append((row, selector.ledger.reservations.get_reservation("s").sequence_hashes))
    assert msgspec.structs.replace(rows[0][0], router_id=rows[1][0].router_id) == rows[1][0]
    assert rows[0][1].tolist() == rows[1][1].tolist()


def test_a_selection_is_booked_once(selector: SelectorCore) -> None:
    select(selector, selection_id="s")
    replay(selector)
    selector.free_reservation("s", 1.0)
    with pytest.raises(NotFound, match="no pending selection s for model=m routing_group=default"):
        replay(selector)


def test_the_later_selection_of_an_id_counts(selector: SelectorCore) -> None:
    select(selector, selection_id="s", worker_id=1)
    select(selector, selection_id="s", worker_id=2, tokens=12)
    assert replay(selector).worker_id == 2
    assert load_of(selector, 2)[0] == 12


@pytest.mark.parametrize("scope", [{"model_name": "z"}, {"routing_group": "g"}])
def test_another_scope_has_no_such_selection(selector: SelectorCore, scope: Any) -> None:
    select(selector, selection_id="s")
    with pytest.raises(NotFound, match="no pending selection s "):
        replay(selector, **scope)
    assert replay(selector).worker_id == 2


def test_a_selection_without_its_worker_waits_for_it(selector: SelectorCore) -> None:
    select(selector, selection_id="s")
    selector.delete_worker(2, 0.5)
    with pytest.raises(NotFound, match="schedulable worker 2 not found"):
        replay(selector)
    selector.delete_worker(1, 0.5)
    selector.run_pending(0.5)
    with pytest.raises(NotFound, match="schedulable worker 2 not found"):
        replay(selector)
    selector.register_worker(a_worker(2))
    assert replay(selector).worker_id == 2


def test_a_rank_out_of_rotation_keeps_its_selection(selector: SelectorCore) -> None:
    select(selector, selection_id="s")
    selector.fleet.set_weight(Rank(2, 0), 0.0, "draining")
    with pytest.raises(NoEligibleRank, match="draining"):
        replay(selector)
    selector.fleet.set_weight(Rank(2, 0), 1.0, "")
    assert replay(selector).worker_id == 2


def test_blocks_of_another_size_are_other_blocks(selector: SelectorCore) -> None:
    select(selector, selection_id="s")
    for worker_id in (1, 2):
        selector.delete_worker(worker_id, 0.5)
    selector.run_pending(0.5)
    selector.register_worker(a_worker(2, block_size=8))
    with pytest.raises(NotFound, match=r"blocks of 4 tokens.*blocks of 8: select again"):
        replay(selector)


def test_an_id_in_use_keeps_the_selection(selector: SelectorCore) -> None:
    selector.reserve(a_reservation("s", 1), 0.0)
    select(selector, selection_id="s")
    with pytest.raises(Conflict):
        replay(selector)
    selector.free_reservation("s", 1.0)
    assert replay(selector).worker_id == 2


def test_a_booking_on_a_given_worker_ends_the_selection(selector: SelectorCore) -> None:
    select(selector, selection_id="s")
    selector.reserve(a_reservation("s", 1), 0.0)
    selector.free_reservation("s", 0.0)
    with pytest.raises(NotFound):
        replay(selector)


def test_a_booking_in_one_step_leaves_the_selection_of_its_id(selector: SelectorCore) -> None:
    select(selector, selection_id="s")
    selector.select_and_reserve(a_select_and_reserve(selection_id="s"), 0.5)
    with pytest.raises(Conflict):
        replay(selector)
    selector.free_reservation("s", 1.0)
    assert replay(selector).worker_id == 2


def test_a_replay_may_have_an_id_of_its_own(selector: SelectorCore) -> None:
    select(selector, selection_id="s")
    assert replay(selector, reservation_id="r").reservation_id == "r"
    assert selector.inspection.get_reservation("r", 1.0).worker_id == 2


def test_advice_is_booked_like_any_other_selection(selector: SelectorCore) -> None:
    advice = select(selector, selection_id="s", advisory=True)
    assert load_of(selector, 2) == IDLE
    assert replay(selector).worker_id == advice.worker_id == 2


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ({"track_prefill_tokens": False}, (0, 2, 1)),
        ({"assume_kv_reuse": False}, (8, 2, 1)),
        ({}, (8, 2, 1)),
    ],
)
def test_the_tracking_of_the_selection_is_booked(
    selector: SelectorCore, override: Any, expected: tuple[int, int, int]
) -> None:
    select(selector, selection_id="s", router_config_override=override)
    replay(selector)
    assert load_of(selector, 2) == expected
    # Without reuse no other reservation shares the blocks.
    selector.reserve(a_reservation("same", 2, effective_prefill_tokens=0), 2.0)
    shared = "assume_kv_reuse" not in override
    assert load_of(selector, 2)[1] == (2 if shared else 4)


@pytest.mark.parametrize("override", [None, {"router_temperature": 0.0, "assume_kv_reuse": False}])
def test_given_identities_are_shared_by_a_selection_without_reuse(override: Any) -> None:
    selector = a_fleet(RouterConfig(assume_kv_reuse=override is not None))
    given = {"token_ids": None, "block_hashes": [1, 2], "sequence_hashes": [3, 4], "isl_tokens": 8}
    for name in "ab":
        select(selector, selection_id=name, router_config_override=override, **given)
        replay(selector, selection_id=name)
        assert load_of(selector, 2)[1] == 2


@pytest.mark.parametrize("body", [{"reservation_id": "r"}, {}, {"worker_id": 1}])
def test_a_booking_needs_an_id_and_a_worker_or_a_selection(body: Any) -> None:
    with pytest.raises(
        msgspec.ValidationError,
        match=r"worker_id` is missing|selection_id and reservation_id are missing",
    ):
        msgspec.convert({"token_ids": [1], **body}, ReservationRequest)


def test_a_selection_expires(selector: SelectorCore) -> None:
    ttl_s = selector.replay.pending.ttl_s
    select(selector, selection_id="s")
    with pytest.raises(NotFound):
        replay(selector, now=ttl_s)
    (task,) = [each for each in selector.periodic_tasks() if each.name == "selections"]
    assert not task.step(ttl_s)
    assert len(selector.replay.pending) == 0


def test_nothing_is_kept_where_that_is_off() -> None:
    selector = a_selector(selection_cache=SelectionCacheLimits(entries_max=0))
    selector.register_worker(a_worker(2))
    select(selector, selection_id="s")
    with pytest.raises(NotFound):
        replay(selector)


class ReplayMachine(RuleBasedStateMachine):
    """Selections, replays and bookings of few ids on two workers that come and go."""

    IDS = st.sampled_from(["a", "b", "c"])
    WORKERS = st.sampled_from([1, 2])

    @initialize()
    def begin(self) -> None:
        self.selector = a_fleet()
        self.now = 0.0
        self.tokens = 0
        self.pending: dict[str, tuple[int, int, float]] = {}
        self.live: dict[str, tuple[int, int]] = {}
        self.workers = {1, 2}

    def prompt(self) -> list[int]:
        """Return a prompt that shares no block with any other."""
        self.tokens += 1
        return [1000 * self.tokens + n for n in range(4 + self.tokens % 5)]

    @rule(name=IDS, worker_id=WORKERS)
    def select(self, name: str, worker_id: int) -> None:
        if worker_id in self.workers:
            prompt = self.prompt()
            select(self.selector, self.now, worker_id, selection_id=name, token_ids=prompt)
            self.pending[name] = worker_id, len(prompt), self.now

    @rule(name=IDS)
    def replay(self, name: str) -> None:
        worker_id, n_tokens, at = self.pending.get(name, (0, 0, 0.0))
        if name not in self.pending or self.now - at >= 120.0 or worker_id not in self.workers:
            with pytest.raises(NotFound):
                replay(self.selector, self.now, selection_id=name)
        elif name in self.live:
            with pytest.raises(Conflict):
                replay(self.selector, self.now, selection_id=name)
        else:
            assert replay(self.selector, self.now, selection_id=name).worker_id == worker_id
            self.live[name] = worker_id, n_tokens
            del self.pending[name]

    @rule(name=IDS, worker_id=WORKERS)
    def reserve(self, name: str, worker_id: int) -> None:
        if worker_id in self.workers and name not in self.live:
            prompt = self.prompt()
            self.selector.reserve(a_reservation(name, worker_id, token_ids=prompt), self.now)
            self.live[name] = worker_id, len(prompt)
            self.pending.pop(name, None)

    @rule(name=IDS)
    def free(self, name: str) -> None:
        if self.live.pop(name, None) is not None:
            self.selector.free_reservation(name, self.now)

    @rule(worker_id=WORKERS)
    def leave_or_return(self, worker_id: int) -> None:
        if worker_id in self.workers:
            self.workers.remove(worker_id)
            self.selector.delete_worker(worker_id, self.now)
            self.live = {n: held for n, held in self.live.items() if held[0] != worker_id}
            self.selector.run_pending(self.now)
        else:
            self.workers.add(worker_id)
            self.selector.register_worker(a_worker(worker_id))

    @rule(seconds=st.sampled_from([1.0, 50.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for task in self.selector.periodic_tasks():
            if task.name == "selections":
                task.step(self.now)

    @invariant()
    def load_is_that_of_live_bookings(self) -> None:
        for worker_id in self.workers:
            held = [n for each, n in self.live.values() if each == worker_id]
            prefill, _, requests = load_of(self.selector, worker_id)
            assert (prefill, requests) == (sum(held), len(held))
        self.selector.check_invariants()


TestReplayMachine = explored(ReplayMachine)
