"""Tests of long prompts: hashed on a thread, with the same answers as short prompts."""

import threading

import msgspec
import pytest

from select_service.core.load import active_load, growing_table
from select_service.core.load.compiled.load_layout import WHOLE_BLOCKS
from select_service.core.load.ledger import MANY_BLOCKS, Ledger
from select_service.core.placement import prompt
from select_service.core.placement.prompt import estimate_blocks
from select_service.core.prompt_resolver import PromptResolver
from select_service.schemas.selection import SelectRequest
from tests.builders import worker_body

TOKENS = list(range(40))
BODIES = {
    "/select": {},
    "/select_and_reserve": {"reservation_id": "r"},
    "/reservations": {"reservation_id": "r", "worker_id": 1},
    "/potential_loads": {},
    "/overlap_scores": {},
}


@pytest.fixture
def threads(monkeypatch):
    """Return the list of threads that hash prompts."""
    found = []

    def noting(*arguments, **fields):
        found.append(threading.current_thread())
        return hashed(*arguments, **fields)

    hashed = prompt.compute_block_hashes
    monkeypatch.setattr(prompt, "compute_block_hashes", noting)
    return found


@pytest.mark.parametrize("path", BODIES)
def test_a_long_prompt_is_hashed_once_and_not_on_the_event_loop(api, path, threads, monkeypatch):
    api.post("/workers", worker_body(1))
    short = api.post(path, {"model_name": "m", "token_ids": TOKENS, **BODIES[path]})
    api.delete_worker("/reservations/r")
    monkeypatch.setattr(prompt, "LONG_PROMPT_LENGTH", len(TOKENS) - 1)
    long = api.post(path, {"model_name": "m", "token_ids": TOKENS, **BODIES[path]})
    here, elsewhere = threads
    assert here is threading.current_thread() is not elsewhere
    assert (long.status, long.body) == (short.status, short.body)


@pytest.mark.parametrize("path", BODIES)
def test_a_long_prompt_that_is_wrong_is_refused_like_any_other(fleet, path, monkeypatch):
    monkeypatch.setattr(prompt, "LONG_PROMPT_LENGTH", 0)
    body = {"model_name": "m", "block_hashes": [1, 2], "sequence_hashes": [1], **BODIES[path]}
    answer = fleet.post(path, body)
    assert (answer.status, answer.body["code"]) == (400, "bad_request")


def test_a_long_prompt_without_workers_is_refused_like_any_other(api, monkeypatch):
    monkeypatch.setattr(prompt, "LONG_PROMPT_LENGTH", 0)
    assert api.post("/select", {"model_name": "m", "token_ids": [1]}).status == 503


def test_a_prompt_that_was_read_for_other_blocks_is_read_again(fleet, threads, monkeypatch):
    monkeypatch.setattr(prompt, "LONG_PROMPT_LENGTH", 0)
    monkeypatch.setattr(PromptResolver, "hashing_parameters", lambda self, query: (8, False))
    scores = fleet.post("/overlap_scores", {"model_name": "m", "token_ids": TOKENS}).body
    assert (scores["num_blocks"], len(threads)) == (10, 2)


def test_a_long_booking_has_names_for_its_first_blocks_and_counts_all(api, monkeypatch):
    api.post("/workers", worker_body(1))
    monkeypatch.setattr("select_service.core.load.new_reservation.BOOKED_BLOCKS_MAX", 4)
    ledger = api.service.selector.ledger

    def active():
        (rank,) = api.get("/loads").body[0]["loads"]
        return rank["potential_decode_blocks"]

    for name in ("a", "b"):
        body = {"model_name": "m", "token_ids": TOKENS, "reservation_id": name}
        assert api.post("/select_and_reserve", body).status == 200
        assert len(ledger.reservations.get_reservation(name).hashed_blocks) == 4
        assert active() == (10 if name == "a" else 16)
    row = api.get("/reservations/a").body
    assert (row["prompt_blocks"], row["output_blocks"]) == (10, 0)
    api.post("/reservations/a/output_block", {"decay_fraction": 0.5})
    row = api.get("/reservations/a").body
    assert (row["prompt_blocks"], row["output_blocks"]) == (10, 1)
    for name in ("a", "b"):
        assert api.delete_worker(f"/reservations/{name}").status == 200
    assert active() == 0
    ledger.check_invariants()


def prompt_of_many_blocks(number):
    first = number * MANY_BLOCKS
    hashes = list(range(first, first + MANY_BLOCKS))
    return {"sequence_hashes": hashes, "block_hashes": hashes, "isl_tokens": 4 * MANY_BLOCKS}


@pytest.mark.parametrize("path", ["/select_and_reserve", "/reservations"])
def test_a_booking_of_many_blocks_waits_until_its_tables_are_prepared(api, path, monkeypatch):
    api.post("/workers", worker_body(1))
    for module in (growing_table, active_load):
        monkeypatch.setattr(module, "TOUCHED_IN_A_STEP", 1 << 13)
    (partition,) = api.service.selector.fleet.partitions.values()
    load, waited, book = partition.account.load, [], Ledger._try_book
    prepare = type(load).prepare_step

    booked = set()

    def put(ledger, booking, *numbers):
        """Book; a retry may follow an exchange of tables, which leaves rows to be moved."""
        assert booking.reservation_id in booked or load.is_prepared(MANY_BLOCKS)
        booked.add(booking.reservation_id)
        return book(ledger, booking, *numbers)

    def prepared(load, blocks):
        waited.append(number)
        return prepare(load, blocks)

    monkeypatch.setattr(Ledger, "_try_book", put)
    monkeypatch.setattr(type(load), "prepare_step", prepared)
    for number in range(10):
        body = {"model_name": "m", "reservation_id": f"r{number}", **BODIES[path]}
        body |= {"reservation_id": f"r{number}", **prompt_of_many_blocks(number)}
        assert api.post(path, body).status // 100 == 2
    assert waited
    assert load.totals[:, WHOLE_BLOCKS].sum() == 10 * MANY_BLOCKS


def test_the_blocks_of_a_prompt_are_counted_before_it_is_read():
    def blocks(**fields):
        return estimate_blocks(msgspec.convert({"model_name": "m", **fields}, SelectRequest), 4)

    assert blocks(token_ids=TOKENS) == 10
    assert blocks(sequence_hashes=[1, 2], block_hashes=[1, 2], isl_tokens=9) == 2
    assert blocks(token_ids=TOKENS, mm_routing_info={"routing_token_ids": [1] * 9}) == 2
    assert blocks() == 0
