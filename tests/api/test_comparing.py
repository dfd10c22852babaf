"""GET /shadow."""

import pytest

from tests.api.in_process import Api
from tests.builders import worker_body

PROMPT = {"model_name": "m", "token_ids": list(range(34))}


@pytest.fixture
def shadowed():
    with Api("--shadow-policy", "reference") as api:
        for worker_id in (1, 2):
            api.post("/workers", worker_body(worker_id))
        yield api


def test_the_shadow_says_what_it_would_have_chosen(shadowed):
    assert shadowed.get("/shadow").body == {
        "shadow_policy": "reference",
        "skipped": 0,
        "backlog": 0,
        "policies": [],
    }
    for _ in range(3):
        shadowed.post("/select", PROMPT)
    assert shadowed.get("/shadow").body["backlog"] == 3
    shadowed.service.selector.shadow.step(0.0)
    (row,) = shadowed.get("/shadow").body["policies"]
    assert row == {
        "policy": "work",
        "decisions": 3,
        "other": 0,
        "no_choice": 0,
        "partial": 0,
        "regret": 0.0,
        "lowest_cost": 16.5,
        "made": {"wait": 0.0, "prefill": 0.0},
        "shadow": {"wait": 0.0, "prefill": 0.0},
    }
    setting = shadowed.get("/config").body["settings"]["shadow_policy"]
    assert setting["value"] == "reference"


def test_without_a_shadow_policy_there_is_nothing_to_show(fleet):
    answer = fleet.get("/shadow")
    assert (answer.status, answer.body["code"]) == (404, "not_found")
    assert "--shadow-policy" in answer.body["error"]
