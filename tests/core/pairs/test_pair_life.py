"""Tests of pairs against a naive twin: legs, transfers, moves, expiry and workers that leave."""

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from select_service.base.errors import BadRequest, NoEligibleRank, NotFound, SelectError
from select_service.core.identity import Rank
from select_service.core.load.prefill_legs import prefill_leg_of
from select_service.core.pairs.pair_book import UNREPORTED_MOVE_S
from select_service.core.placement.router_config import RouterConfig
from select_service.schemas.pairs import SelectPairAndReserveRequest
from tests.builders import a_selector, a_worker
from tests.builders.hypothesis_profiles import explored

SIZE = 4
TTL_S = 50.0
PREFILLS, DECODES = (1, 2, 3), (4, 5, 6)
HOST_OF = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: None}


@dataclass
class Pair:
    """Pair of the twin.

    prefill: worker of the prefill leg; None after its end, or if the decode rank computes both
    """

    prefill: int | None
    decode: int
    route: tuple
    tokens: float
    ends_at: float | None = None
    leased_at: float = 0.0


def a_pair(name, tokens, local="auto"):
    body = {"model_name": "m", "reservation_id": name, "token_ids": tokens, "local": local}
    return msgspec.convert(body, SelectPairAndReserveRequest)


def a_pair_worker(worker_id):
    link = {"host": HOST_OF[worker_id], "link_gbps": 100.0, "bytes_per_token": 131072.0}
    role = "prefill" if worker_id in PREFILLS else "decode"
    return a_worker(worker_id, role=role, kv_transfer=link, prefill_tokens_per_s=33_000.0)


class PairLife(RuleBasedStateMachine):
    names = Bundle("names")

    @initialize()
    def begin(self):
        self.selector = a_selector(RouterConfig(policy="work"), ttl_s=TTL_S)
        self.now, self.pairs, self.there = 0.0, {}, set()
        self.count = 0
        for worker_id in (*PREFILLS, *DECODES):
            self.add_worker(worker_id)

    def add_worker(self, worker_id):
        self.selector.register_worker(a_pair_worker(worker_id))
        self.there.add(worker_id)

    def route(self, prefill, decode):
        out, into = HOST_OF[prefill], HOST_OF[decode]
        return (None, None) if out == into else (out, into)

    def enter(self, name, answer):
        prefill, decode = (leg.worker_id for leg in answer.legs)
        is_local = answer.path == "local"
        assert is_local == (prefill == decode)
        assert decode in DECODES
        assert is_local or prefill in PREFILLS
        self.pairs[name] = Pair(
            None if is_local else prefill,
            decode,
            (None, None) if is_local else self.route(prefill, decode),
            0.0 if is_local else answer.move_tokens,
            leased_at=self.now if name not in self.pairs else self.pairs[name].leased_at,
        )

    @rule(target=names, length=st.integers(1, 60), local=st.sampled_from(["auto", "never"]))
    def book(self, length, local):
        self.count += 1
        name = f"r{self.count}"
        tokens = list(range(1000 * self.count, 1000 * self.count + length))
        try:
            decision = self.selector.select_pair(a_pair(name, tokens, local), self.now)
        except SelectError:
            assert not (self.there & set(DECODES)) or (
                local == "never" and not (self.there & set(PREFILLS))
            )
            return name
        self.enter(name, decision.pair)
        return name

    def is_known(self, name, call):
        """Return whether a call finds the reservation, and compare with the twin."""
        try:
            call()
        except NotFound:
            assert name not in self.pairs
            return False
        assert name in self.pairs
        self.pairs[name].leased_at = self.now
        return True

    @rule(name=names)
    def complete(self, name):
        if self.is_known(name, lambda: self.selector.complete_prefill(name, self.now)):
            pair = self.pairs[name]
            pair.prefill = None
            if pair.tokens and pair.ends_at is None:
                pair.ends_at = self.now + UNREPORTED_MOVE_S

    @rule(name=names)
    def first_token(self, name):
        if self.is_known(name, lambda: self.selector.report_first_token(name, self.now)):
            self.pairs[name].prefill, self.pairs[name].tokens = None, 0.0

    @rule(name=names)
    def free(self, name):
        if self.is_known(name, lambda: self.selector.free_reservation(name, self.now)):
            del self.pairs[name]

    @rule(name=names, leg=st.sampled_from(["prefill", "decode"]))
    def move(self, name, leg):
        pair = self.pairs.get(name)
        try:
            answer = self.selector.pairs.move_leg(name, leg, self.now)
        except NotFound:
            assert pair is None
            return
        except NoEligibleRank:
            return
        except SelectError:
            assert leg == "prefill"
            assert pair.prefill is None
            return
        before = pair.decode if leg == "decode" else pair.prefill
        after = answer.legs[leg == "decode"].worker_id
        assert after != before
        self.enter(name, answer)

    @rule(seconds=st.sampled_from([0.5, 3.0, 30.0]))
    def wait(self, seconds):
        self.now += seconds
        self.selector.expire_reservations(self.now)
        self.selector.pairs.book.expire_transfers(self.now)
        for name, pair in list(self.pairs.items()):
            if pair.leased_at + TTL_S <= self.now:
                del self.pairs[name]
                continue
            if pair.ends_at is not None and pair.ends_at <= self.now:
                pair.tokens = 0.0

    @rule(worker_id=st.sampled_from((*PREFILLS, *DECODES)))
    def change_worker(self, worker_id):
        if worker_id not in self.there:
            self.add_worker(worker_id)
            return
        self.selector.delete_worker(worker_id, self.now)
        self.there.discard(worker_id)
        for name, pair in list(self.pairs.items()):
            if pair.decode == worker_id:
                del self.pairs[name]
            elif pair.prefill == worker_id:
                # No more tokens leave this worker, except those already on their way.
                pair.prefill = None
                if pair.ends_at is None:
                    pair.tokens = 0.0

    @invariant()
    def agrees(self):
        for _ in range(4):
            self.selector.run_pending(self.now)
        self.selector.check_invariants()
        booked = {
            booking.reservation_id: booking.rank.worker_id
            for booking in self.selector.ledger.reservations
        }
        expected = {}
        for name, pair in self.pairs.items():
            expected[name] = pair.decode
            if pair.prefill is not None:
                expected[prefill_leg_of(name)] = pair.prefill
        assert booked == expected
        self.check_links()

    def check_links(self):
        for partition in self.selector.fleet.partitions.values():
            links = self.selector.pairs.links.links_of(partition)
            waiting = {"leaving": {}, "entering": {}}
            for pair in self.pairs.values():
                for side, host in zip(waiting, pair.route, strict=True):
                    if host is not None and pair.tokens:
                        waiting[side][host] = waiting[side].get(host, 0.0) + pair.tokens
            assert links.placer.waiting_by_host() == tuple(waiting.values())


TestPairLife = explored(PairLife)


def test_an_id_of_a_prefill_leg_is_refused():
    selector = a_selector(RouterConfig(policy="work"))
    selector.register_worker(a_worker(1))
    request = a_pair(prefill_leg_of("a"), list(range(10)))
    with pytest.raises(BadRequest, match="choose another id"):
        selector.select_pair(request, 0.0)
    assert not len(selector.ledger.reservations)
    assert Rank(1, 0) in dict(next(iter(selector.fleet.partitions.values())).table.iterate_slots())
