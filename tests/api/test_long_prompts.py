"""Long prompts are hashed on a thread, and the answers are those of short ones."""

import threading

import pytest

from select_service.core import selector
from select_service.core.decide import prompt
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
    """Where prompts were hashed."""
    found = []

    def noting(*arguments, **fields):
        found.append(threading.current_thread())
        return hashed(*arguments, **fields)

    hashed = prompt.block_hashes
    monkeypatch.setattr(prompt, "block_hashes", noting)
    return found


@pytest.mark.parametrize("path", BODIES)
def test_a_long_prompt_is_hashed_once_and_not_on_the_event_loop(api, path, threads, monkeypatch):
    api.post("/workers", worker_body(1))
    short = api.post(path, {"model_name": "m", "token_ids": TOKENS, **BODIES[path]})
    api.delete("/reservations/r")
    monkeypatch.setattr(prompt, "LONG_PROMPT", len(TOKENS) - 1)
    long = api.post(path, {"model_name": "m", "token_ids": TOKENS, **BODIES[path]})
    here, elsewhere = threads
    assert here is threading.current_thread() is not elsewhere
    assert (long.status, long.body) == (short.status, short.body)


@pytest.mark.parametrize("path", BODIES)
def test_a_long_prompt_that_is_wrong_is_refused_like_any_other(fleet, path, monkeypatch):
    monkeypatch.setattr(prompt, "LONG_PROMPT", 0)
    body = {"model_name": "m", "block_hashes": [1, 2], "sequence_hashes": [1], **BODIES[path]}
    answer = fleet.post(path, body)
    assert (answer.status, answer.body["code"]) == (400, "bad_request")


def test_a_long_prompt_without_workers_is_refused_like_any_other(api, monkeypatch):
    monkeypatch.setattr(prompt, "LONG_PROMPT", 0)
    assert api.post("/select", {"model_name": "m", "token_ids": [1]}).status == 503


def test_a_prompt_that_was_read_for_other_blocks_is_read_again(fleet, threads, monkeypatch):
    monkeypatch.setattr(prompt, "LONG_PROMPT", 0)
    monkeypatch.setattr(selector.Selector, "hashing_of", lambda self, query: (8, False))
    scores = fleet.post("/overlap_scores", {"model_name": "m", "token_ids": TOKENS}).body
    assert (scores["num_blocks"], len(threads)) == (10, 2)


def test_of_a_long_booking_the_first_blocks_have_names_and_all_are_counted(api, monkeypatch):
    api.post("/workers", worker_body(1))
    monkeypatch.setattr("select_service.core.load.booking.BOOKED_BLOCKS_MAX", 4)
    ledger = api.service.selector.ledger

    def active():
        (rank,) = api.get("/loads").body[0]["loads"]
        return rank["potential_decode_blocks"]

    for name in ("a", "b"):
        body = {"model_name": "m", "token_ids": TOKENS, "reservation_id": name}
        assert api.post("/select_and_reserve", body).status == 200
        assert len(ledger.held.get(name).named) == 4
        assert active() == (10 if name == "a" else 16)
    row = api.get("/reservations/a").body
    assert (row["prompt_blocks"], row["output_blocks"]) == (10, 0)
    api.post("/reservations/a/output_block", {"decay_fraction": 0.5})
    row = api.get("/reservations/a").body
    assert (row["prompt_blocks"], row["output_blocks"]) == (10, 1)
    for name in ("a", "b"):
        assert api.delete(f"/reservations/{name}").status == 200
    assert active() == 0
    ledger.check_invariants()
