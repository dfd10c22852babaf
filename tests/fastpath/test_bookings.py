"""Tests of reservations that compiled code changes itself, and of those left to the verbs."""

import json
from time import monotonic
from typing import Any

import numpy as np
import pytest

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.tiers import Tier
from select_service.base import log_format
from select_service.core.admission.waiting_ticket import WaitingTicket
from select_service.core.identity import Rank
from select_service.core.load.compiled import ledger_layout
from select_service.schemas.selection import SelectRequest
from tests.builders import worker_body
from tests.fastpath.requests import AIOHTTP, request
from tests.fastpath.test_equality import post, prompt_of
from tests.fastpath.two_services import REPLICA_FLAGS, Side, TwoServices

UNTRACKED = ("PREFILL_TOKENS", "ACTIVE_BLOCKS", "OUTPUT_BLOCKS")
NOT_FOLLOWING = ("--policy", "reference")
OWN_IDENTITIES = ("DYN_ROUTER_ASSUME_KV_REUSE=false",)


class Verbs:
    """Substitutes of a service's verbs that refuse every call.

    called: number of calls
    """

    requested_slot: Any
    notify_booking: Any
    notify_lifecycle: Any

    def __init__(self) -> None:
        self.called = 0

    def call(self, *_: Any) -> bool:
        self.called += 1
        return False

    def is_booking_bounded(self, *_: Any) -> bool:
        return True

    def book_placed(self, *_: Any) -> None:
        self.called += 1

    def reserve(self, *_: Any) -> bool:
        return self.call()


def services(*flags: str) -> TwoServices:
    """Return two services with two workers each.

    flags: flags, or variables of the environment with values
    """
    two = TwoServices(*flags)
    sizes = {"total_kv_blocks": 4000, "max_num_batched_tokens": 8192}
    for worker in (1, 2):
        body = worker_body(worker, model_name="default", data_parallel_size=2, **sizes)
        two.send(post("/workers", body))
    return two


def select_and_reserve(name: str | None, length: int = 60) -> bytes:
    named = {} if name is None else {"reservation_id": name}
    return post("/select_and_reserve", {**named, **prompt_of(length, False)})


def life_of(name: str) -> list[bytes]:
    verbs = ("prefill_complete", "output_block", "prefill_complete", "output_block", "renew")
    return [
        select_and_reserve(name),
        *(request(f"POST /reservations/{name}/{verb}", AIOHTTP) for verb in verbs),
        request(f"DELETE /reservations/{name}", AIOHTTP),
    ]


def _of_sequence(length: int) -> dict[str, Any]:
    prompt = prompt_of(length, False)
    del prompt["block_hashes"]
    return prompt


def reserve(name: str, tokens: int | None = None, prompt: dict[str, Any] | None = None) -> bytes:
    given = {} if tokens is None else {"effective_prefill_tokens": tokens}
    body = {"reservation_id": name, "worker_id": 2, "dp_rank": 1, **given}
    return post("/reservations", {**body, **(prompt or prompt_of(60, False))})


def reservations_and_life(name: str) -> list[bytes]:
    """Return bookings on a rank that the client chose, with default and given prefill tokens."""
    free = request(f"DELETE /reservations/{name}", AIOHTTP)
    return [
        reserve(name),
        *life_of(name)[1:],
        *(step for tokens in (0, 7, 60) for step in (reserve(name, tokens), free)),
    ]


def without_verbs(two: TwoServices) -> Verbs:
    assert two.fast.handler is not None
    verbs = Verbs()
    real = two.fast.handler._calls
    verbs.requested_slot = real.requested_slot
    verbs.notify_booking, verbs.notify_lifecycle = real.notify_booking, real.notify_lifecycle
    two.fast.handler._calls = verbs  # type: ignore[assignment]
    return verbs


def loads_are_the_same(two: TwoServices) -> None:
    fast, ordinary = (
        list(side.selector.inspection.partition_loads()) for side in (two.fast, two.ordinary)
    )
    assert fast == ordinary


def check_published_events(two: TwoServices) -> None:
    """Check that both services send the same to other replicas, where replicas may exist."""
    if two.fast.replicas is not None:
        fast, ordinary = (side.take_events(100) for side in (two.fast, two.ordinary))
        assert fast == ordinary


@pytest.mark.parametrize("flags", [(), REPLICA_FLAGS], ids=["alone", "replicas"])
@pytest.mark.parametrize("policy", ["reference", "work"])
@pytest.mark.parametrize("untracked", [None, *UNTRACKED])
def test_after_the_first_booking_no_verb_of_the_core_is_called(untracked, policy, flags):
    if untracked is not None:
        flags = (*flags, f"DYN_ROUTER_TRACK_{untracked}=false")
    with services("--policy", policy, *flags) as two:
        two.send(select_and_reserve("first"))
        verbs = without_verbs(two)
        names = []
        for data in [
            *life_of("a"),
            select_and_reserve(None),
            *life_of("b")[:4],
            *reservations_and_life("c"),
        ]:
            answer = two.send(data)
            assert answer.startswith(b"HTTP/1.1 20")
            names.append(json.loads(answer.split(b"\r\n\r\n")[1]).get("reservation_id"))
            loads_are_the_same(two)
            check_published_events(two)
        assert verbs.called == 0
        assert two.answered == 1 + len(names)
        made_up = next(name for name in names if name not in (None, "a", "b", "c"))
        two.send(request(f"DELETE /reservations/{made_up}", AIOHTTP))


def test_where_blocks_get_identities_of_their_own_verbs_are_called():
    with services(*OWN_IDENTITIES) as two:
        tokens = {"reservation_id": "a", **prompt_of(60, True)}
        for data in [post("/select_and_reserve", tokens), *life_of("a")[1:]]:
            assert two.send(data).startswith(b"HTTP/1.1 20")
            loads_are_the_same(two)
        verbs = without_verbs(two)
        two.send(post("/select_and_reserve", {**tokens, "reservation_id": "b"}))
        assert verbs.called == 1


def test_identities_that_a_client_gives_are_shared_by_the_ordinary_path():
    with services(*OWN_IDENTITIES) as two:
        verbs = without_verbs(two)
        for name in "abc":
            two.send(select_and_reserve(name))
            loads_are_the_same(two)
        two.send(reserve("d"))
        two.send(post("/select", prompt_of(60, False)))
        assert (verbs.called, two.answered) == (0, 0)


def hold_in_index(side: Side, rank: Rank, n_blocks: int) -> None:
    """Let the rank hold the first `n_blocks` blocks of every prompt."""
    (partition,) = side.selector.fleet.partitions.values()
    blocks = compute_block_hashes(np.arange(60, dtype=np.uint32), partition.block_size)[:n_blocks]
    partition.table.writer_of(rank).store(Tier.GPU, None, blocks, blocks)


def account_of(side: Side, name: str) -> tuple[object, ...]:
    """Return the recorded prefill of a reservation."""
    held = side.selector.ledger.reservations.find_reservation(name)
    assert held is not None
    return (
        held.prefill_work,
        held.cached_blocks,
        held.prompt_beginning(64).tolist(),
        held.prefill_tokens,
    )


@pytest.mark.parametrize("flags", [(), REPLICA_FLAGS], ids=["alone", "replicas"])
@pytest.mark.parametrize("cached", [0, 9])
def test_the_work_on_a_chosen_rank_equals_that_of_the_verb(cached, flags):
    """The rank has less work than the whole prompt where some of the prompt is cached."""
    with services("--policy", "work", *flags) as two:
        two.send(select_and_reserve("first"))
        verbs, sides = without_verbs(two), (two.fast, two.ordinary)
        for side in sides:
            hold_in_index(side, Rank(2, 1), cached)
        names = iter("abcdefgh")
        for tokens in (None, 0, 7, 60):
            for prompt in (prompt_of(60, True), _of_sequence(60)):
                name = next(names)
                assert two.send(reserve(name, tokens, prompt)).startswith(b"HTTP/1.1 201")
                fast, ordinary = (account_of(side, name) for side in sides)
                assert fast == ordinary
                loads_are_the_same(two)
                check_published_events(two)
                assert two.send(request(f"DELETE /reservations/{name}", AIOHTTP))
        assert verbs.called == 0


def waiting_on(side: Side) -> WaitingTicket:
    """Return a request that waits for capacity; there is none."""
    outcome = side.selector.select(SelectRequest(token_ids=list(range(40))), monotonic())
    assert isinstance(outcome, WaitingTicket)
    return outcome


def reserve_all(name: str) -> list[bytes]:
    """Return bookings with many prefill tokens on every rank."""
    prompt = {"sequence_hashes": [1], "isl_tokens": 8000}
    return [
        post("/reservations", {**prompt, "reservation_id": f"{name}{worker}{dp_rank}", **rank})
        for worker in (1, 2)
        for dp_rank in (0, 1)
        for rank in [{"worker_id": worker, "dp_rank": dp_rank}]
    ]


def test_with_a_queue_verbs_are_called_only_while_a_request_waits():
    """The core handles calls that free capacity for a waiter or take the name of a waiter."""
    with services(*NOT_FOLLOWING, "--queue-threshold", "0.4") as two:
        for data in (select_and_reserve("first"), select_and_reserve("a")):
            two.send(data)
        renew = request("POST /reservations/a/renew", AIOHTTP)
        verbs = without_verbs(two)
        for data in (renew, *life_of("b"), *reservations_and_life("c")):
            assert two.send(data).startswith(b"HTTP/1.1 20")
            loads_are_the_same(two)
        for data in reserve_all("d"):
            assert two.send(data).startswith(b"HTTP/1.1 201")
        assert verbs.called == 0
        sides = (two.fast, two.ordinary)
        tickets = [waiting_on(side) for side in sides]
        two.send(renew)
        assert verbs.called == 1
        for side, ticket in zip(sides, tickets, strict=True):
            side.selector.gate.remove_disconnected(ticket)
        two.send(renew)
        assert verbs.called == 1


def test_more_prefill_tokens_than_the_prompt_has_are_refused():
    with services() as two:
        assert two.send(reserve("a", 60)).startswith(b"HTTP/1.1 201")
        assert two.send(reserve("b", 60)).startswith(b"HTTP/1.1 201")
        answered = two.answered
        assert two.send(reserve("c", 61)).startswith(b"HTTP/1.1 400")
        assert two.send(reserve("b", 1)).startswith(b"HTTP/1.1 409")
        assert two.answered == answered
        loads_are_the_same(two)


def test_full_tables_grow_by_a_verb_and_release_the_old_memory():
    with services() as two:
        for number in range(40):
            tokens = [1000 * number + k for k in range(1200)]
            body = {"reservation_id": str(number), "token_ids": tokens}
            assert two.send(post("/select_and_reserve", body)).startswith(b"HTTP/1.1 200")
        loads_are_the_same(two)
        for number in range(40):
            two.send(request(f"DELETE /reservations/{number}", AIOHTTP))
        two.send(select_and_reserve("last"))
        numbers = two.fast.selector.ledger.reservations.memory.numbers
        assert numbers[ledger_layout.LOAD_TO_RELEASE] == 0


def test_the_ordinary_path_refuses_unknown_ids_and_ids_in_use():
    with services() as two:
        two.send(select_and_reserve("a"))
        answered = two.answered
        assert two.send(select_and_reserve("a")).startswith(b"HTTP/1.1 409")
        for data in life_of("b")[1:]:
            assert two.send(data).startswith(b"HTTP/1.1 404")
        assert two.answered == answered


def test_the_fast_path_leaves_logged_requests_alone():
    select = post("/select", prompt_of(31, False))
    with services() as two:
        two.send(select)
        log_format.set_log_level("debug")
        two.send(select)
        assert two.answered == 1
        log_format.set_log_level("info")
        two.send(select)
        assert two.answered == 2
