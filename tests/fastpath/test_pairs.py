"""Tests of pairs on the fast path: the same answers, bookings and transfers as without it."""

import gc
import json
from typing import Any
from weakref import ref

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from select_service.core.load.compiled import ledger_layout
from select_service.core.load.compiled.load_layout import REQUESTS
from select_service.fastpath import pair_answers
from select_service.fastpath.pair_answers import PAIR_KERNEL, PairKernel
from tests.builders.hypothesis_profiles import explored
from tests.fastpath.mutations import mutated
from tests.fastpath.pair_fleet import (
    KINDS,
    ROLES,
    book_first,
    check_agreement,
    check_metrics,
    later,
    observation_of,
    pair_services,
    pair_worker,
    sides_of,
    store,
)
from tests.fastpath.prompts import get, post, prompt_of
from tests.fastpath.requests import AIOHTTP, BARE, HTTPX, HYPER, request
from tests.fastpath.two_services import REPLICA_FLAGS

HEADERS = (HTTPX, AIOHTTP, HYPER, BARE)
VERBS = ("prefill_complete", "first_token", "renew", "output_block")
NAMES = ("a", "b", "c.d:1")
LENGTHS = (1, 3, 9, 30, 60)

names = st.fixed_dictionaries(
    {}, optional={"reservation_id": st.sampled_from(NAMES), "selection_id": st.sampled_from(NAMES)}
)
locals_ = st.sampled_from(({}, {"local": "auto"}, {"local": "never"}, {"local": "always"}))
RARE_FIELDS: tuple[dict[str, Any], ...] = (
    {"prefill": {"allowed_worker_ids": [2]}},
    {"decode": {"allowed_worker_ids": [4]}},
    {"topology": {"domain": "rack", "weight": 0.5}},
    {"topology": {"domain": "rack", "enforcement": "required"}},
    {"allowed_worker_ids": [1, 4]},
    {"pinned_worker": {"worker_id": 3, "dp_rank": 0}},
    {"session_id": "s"},
    {"session_context": {"session_id": "s"}},
    {"affinity": "soft"},
    {"priority_jump": 1.0},
    {"router_config_override": {"overlap_score_weight": 0.5}},
    {"lora_name": "l"},
    {"local": "sometimes"},
    {"local": None},
    {"local": 1},
    {"unheard_of": 1},
    {"reservation_id": "r\x1fprefill"},
    {"repeat": True},
    {"n": 2},
    {"migratable": False},
)
"""Fields that the ordinary path answers or refuses, each alone."""


@pytest.fixture(autouse=True, scope="module")
def kernel() -> None:
    PAIR_KERNEL.load()


class PairsAnswerTheSame(RuleBasedStateMachine):
    flags: tuple[str, ...] = ()

    @initialize(kind=st.sampled_from(KINDS), ranks=st.sampled_from((1, 2)))
    def begin(self, kind, ranks):
        self.kind, self.ranks = kind, ranks
        self.two = pair_services(*self.flags, kind=kind, ranks=ranks)
        self.requests = [post("/select_pair", prompt_of(9, True))]

    def teardown(self):
        if hasattr(self, "two"):
            with self.two:
                check_agreement(self.two)
                check_metrics(self.two)

    def send(self, data, drawn=0.0):
        self.requests.append(data)
        return self.two.send(data, drawn=drawn)

    @rule(
        length=st.sampled_from(LENGTHS),
        as_tokens=st.booleans(),
        fields=names,
        local=locals_,
        outputs=st.sampled_from(({}, {"expected_output_tokens": 9})),
        drawn=st.sampled_from((0.0, 0.3, 0.99)),
        headers=st.sampled_from(HEADERS),
    )
    def book(self, length, as_tokens, fields, local, outputs, drawn, headers):
        body = {**fields, **local, **outputs, **prompt_of(length, as_tokens)}
        self.send(post("/select_pair_and_reserve", body, headers), drawn)

    @rule(
        length=st.sampled_from(LENGTHS),
        as_tokens=st.booleans(),
        fields=st.sampled_from(({}, {"selection_id": "s"}, *RARE_FIELDS)),
        compact=st.booleans(),
        drawn=st.sampled_from((0.0, 0.99)),
    )
    def choose(self, length, as_tokens, fields, compact, drawn):
        body = {**fields, **prompt_of(length, as_tokens)}
        self.send(post("/select_pair", body, compact=compact), drawn)

    @rule(fields=st.sampled_from(RARE_FIELDS), length=st.sampled_from(LENGTHS))
    def book_rarely(self, fields, length):
        body = {"reservation_id": "rare", **fields, **prompt_of(length, True)}
        self.send(post("/select_pair_and_reserve", body))

    @rule(name=st.sampled_from((*NAMES, "rare")), verb=st.sampled_from(VERBS))
    def follow(self, name, verb):
        self.send(request(f"POST /reservations/{name}/{verb}", AIOHTTP))

    @rule(name=st.sampled_from((*NAMES, "rare")))
    def free(self, name):
        self.send(request(f"DELETE /reservations/{name}", AIOHTTP))

    @rule(name=st.sampled_from(NAMES), leg=st.sampled_from(("prefill", "decode")))
    def move(self, name, leg):
        self.send(post(f"/reservations/{name}/move", {"leg": leg}))

    @rule(length=st.sampled_from(LENGTHS), name=st.sampled_from(NAMES))
    def book_one(self, length, name):
        body = {"reservation_id": name, **prompt_of(length, True)}
        self.send(post("/select_and_reserve", body))

    @rule(worker_id=st.sampled_from(sorted(ROLES)), blocks=st.integers(1, 12))
    def hold(self, worker_id, blocks):
        store(self.two, worker_id, blocks)

    @rule(worker_id=st.sampled_from(sorted(ROLES)), weight=st.sampled_from((0.0, 0.5, 1.0)))
    def weigh(self, worker_id, weight):
        self.send(request(f"PATCH /workers/{worker_id}", AIOHTTP, {"weight": weight}))

    @rule(worker_id=st.sampled_from(sorted(ROLES)))
    def remove_worker(self, worker_id):
        self.two.send(request(f"DELETE /workers/{worker_id}", AIOHTTP))

    @rule(worker_id=st.sampled_from(sorted(ROLES)))
    def add_worker(self, worker_id):
        self.two.send(post("/workers", pair_worker(worker_id, self.kind, self.ranks)))

    @rule(seconds=st.sampled_from((3.0, 1e6)))
    def wait(self, seconds):
        later(self.two, seconds)

    @rule(at=st.integers(0, 29), rng=st.randoms(use_true_random=False))
    def send_changed(self, at, rng):
        self.two.send(mutated(self.requests[at % len(self.requests)], rng))
        self.two.reconnect()

    @invariant()
    def both_agree(self):
        if hasattr(self, "two"):
            check_agreement(self.two)


class FollowedPairsAnswerTheSame(PairsAnswerTheSame):
    flags = REPLICA_FLAGS

    @invariant()
    def both_publish_the_same(self):
        if hasattr(self, "two"):
            events = [side.take_events(100) for side in sides_of(self.two)]
            assert events[0] == events[1]


class AssumedPairsAnswerTheSame(PairsAnswerTheSame):
    flags = ("SELECT_SERVICE_NO_ASSUMED_INDEX=false",)


class LimitedPairsAnswerTheSame(PairsAnswerTheSame):
    flags = ("--queue-threshold", "1.0", "--queue-timeout-secs", "0.001")


TestPairs = explored(PairsAnswerTheSame, runs=6)
TestFollowedPairs = explored(FollowedPairsAnswerTheSame, runs=3)
TestAssumedPairs = explored(AssumedPairsAnswerTheSame, runs=2)
TestLimitedPairs = explored(LimitedPairsAnswerTheSame, runs=2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("as_tokens", [True, False])
def test_the_fast_path_answers_the_life_of_a_pair(kind, as_tokens):
    with pair_services(kind=kind) as two:
        book_first(two)
        assert two.answered == 0
        body = {"reservation_id": "r", "local": "never", **prompt_of(60, as_tokens)}
        calls = [
            post("/select_pair", {"selection_id": "s", **prompt_of(60, as_tokens)}),
            post("/select_pair_and_reserve", body),
            request("POST /reservations/r/renew", AIOHTTP),
            request("POST /reservations/r/output_block", AIOHTTP),
            request("POST /reservations/r/prefill_complete", AIOHTTP),
            request("POST /reservations/r/first_token", AIOHTTP),
            request("DELETE /reservations/r", AIOHTTP),
        ]
        for number, call in enumerate(calls):
            answer = two.send(call)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            assert two.answered == number + 1
            check_agreement(two)
            if number == 1:
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["path"] == "remote"
        check_metrics(two)


@pytest.mark.parametrize("kind", KINDS)
def test_each_pair_has_a_hand_over_of_its_own(kind):
    with pair_services(kind=kind) as two:
        book_first(two)
        found = []
        for number in range(6):
            body = {"reservation_id": f"r{number}", "local": "never", **prompt_of(60, True)}
            answer = two.send(post("/select_pair_and_reserve", body), drawn=number / 7)
            found.append(json.dumps(json.loads(answer.partition(b"\r\n\r\n")[2])["handoff"]))
        assert two.answered == 6
        is_minted = kind not in (None, "nixl", "lmcache")
        assert len(set(found)) == (6 if is_minted else 1)


@pytest.mark.parametrize("fields", RARE_FIELDS)
def test_rare_requests_are_left_to_the_ordinary_path(fields):
    with pair_services() as two:
        book_first(two)
        two.send(post("/select_pair_and_reserve", {**fields, **prompt_of(9, True)}))
        assert two.answered == 0


def test_a_booking_without_an_id_gets_one():
    with pair_services() as two:
        book_first(two)
        answer = two.send(post("/select_pair_and_reserve", prompt_of(30, True)))
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["reservation_id"]
        assert two.answered == 1
        check_agreement(two)


def test_limits_are_left_to_the_ordinary_path():
    with pair_services("--active-decode-blocks-threshold", "0.9") as two:
        book_first(two)
        two.send(post("/select_pair_and_reserve", {"reservation_id": "r", **prompt_of(9, True)}))
        assert two.answered == 0


def test_the_conditional_rule_is_left_to_the_ordinary_path():
    with pair_services("--policy", "reference") as two:
        book_first(two)
        two.send(post("/select_pair_and_reserve", {"reservation_id": "r", **prompt_of(9, True)}))
        two.send(post("/select_pair", prompt_of(9, True)))
        assert two.answered == 0


def test_bookings_without_reuse_are_left_to_the_ordinary_path():
    with pair_services("--no-router-assume-kv-reuse") as two:
        book_first(two)
        two.send(post("/select_pair_and_reserve", {"reservation_id": "r", **prompt_of(9, True)}))
        two.send(post("/select_pair", prompt_of(9, True)))
        assert two.answered == 0


def test_without_a_pair_the_ordinary_path_gives_the_reason():
    with pair_services() as two:
        book_first(two)
        for worker_id, role in ROLES.items():
            if role != "prefill":
                two.send(request(f"DELETE /workers/{worker_id}", AIOHTTP))
        body = {"reservation_id": "r", **prompt_of(9, True)}
        assert two.send(post("/select_pair_and_reserve", body))[9:12] != b"200"
        assert two.answered == 0


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_both_legs_are_booked_or_none(limit):
    """The ledger has space for fewer reservations than two pairs need."""
    with pair_services() as two:
        two.send(post("/select_and_reserve", {"reservation_id": "x", **prompt_of(9, True)}))
        two.send(post("/select_pair", prompt_of(9, True)))
        for side in sides_of(two):
            reservations = side.selector.ledger.reservations
            reservations.memory.header[ledger_layout.COUNT_MAX] = limit
        body = {"reservation_id": "r", "local": "never", **prompt_of(30, True)}
        answer = two.send(post("/select_pair_and_reserve", body))
        assert (answer[9:12] == b"200") == (limit == 3)
        # The choice was answered, too.
        assert two.answered == 1 + (limit == 3)
        check_agreement(two)
        (partition,) = two.fast.selector.fleet.partitions.values()
        assert partition.load.totals[:, REQUESTS].sum() == (3 if limit == 3 else 1)


@pytest.mark.parametrize("local", ["never", "always"])
def test_an_id_in_use_is_a_conflict(local):
    with pair_services() as two:
        book_first(two)
        body = {"reservation_id": "r", "local": local, **prompt_of(30, True)}
        for status in (b"200", b"409"):
            assert two.send(post("/select_pair_and_reserve", body))[9:12] == status
            check_agreement(two)
        assert two.answered == 1


def test_a_refused_pair_leaves_no_counters():
    with pair_services() as two:
        two.send(post("/select_and_reserve", {"reservation_id": "r", **prompt_of(9, True)}))
        body = {"reservation_id": "r", **prompt_of(9, True)}
        assert two.send(post("/select_pair_and_reserve", body))[9:12] == b"409"
        assert all("pairs" not in observation_of(side) for side in sides_of(two))
        check_agreement(two)
        check_metrics(two)


def test_the_leg_of_an_ended_pair_is_released_before_its_id_is_booked_again():
    with pair_services() as two:
        book_first(two)
        body = {"reservation_id": "r", "local": "never", **prompt_of(30, True)}
        two.send(post("/select_pair_and_reserve", body))
        again = request("DELETE /reservations/r", HTTPX) + post("/select_pair_and_reserve", body)
        answers = two.send(again)
        assert answers.count(b"HTTP/1.1 200") == 2
        check_agreement(two)


def test_tables_of_the_load_grow_for_pairs():
    with pair_services() as two:
        book_first(two)
        for number in range(40):
            body = {"reservation_id": f"r{number}", "local": "never"}
            tokens = [number * 1000 + k for k in range(400)]
            two.send(post("/select_pair_and_reserve", {**body, "token_ids": tokens}))
        assert two.answered == 40
        check_agreement(two)


def test_pairs_are_declined_until_the_kernel_is_loaded(monkeypatch):
    kernel = PairKernel()
    monkeypatch.setattr(pair_answers, "PAIR_KERNEL", kernel)
    with pair_services() as two:
        book_first(two)
        kernel._thread.join()
        assert kernel.serve is PAIR_KERNEL.serve
        two.send(post("/select_pair", prompt_of(9, True)))
        assert two.answered == 1


@pytest.mark.parametrize("kind", [None, "nixl"])
def test_kept_decisions_do_not_keep_their_partition(kind):
    with pair_services(kind=kind) as two:
        book_first(two)
        for local in ("always", "never"):
            body = {"reservation_id": local, "local": local, **prompt_of(30, True)}
            two.send(post("/select_pair_and_reserve", body))
        assert two.answered == 2
        partitions = [ref(*side.selector.fleet.partitions.values()) for side in sides_of(two)]
        for worker_id in ROLES:
            two.send(request(f"DELETE /workers/{worker_id}", AIOHTTP))
        later(two, 3.0)
        for side in sides_of(two):
            side.send(get("/metrics"))
        gc.collect()
        assert [partition() for partition in partitions] == [None, None]
        check_agreement(two)
        check_metrics(two)
