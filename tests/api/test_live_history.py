"""Tests of the last ten minutes of history, kept for newly opened pages."""

import pytest

from select_service.api.live import live_history
from select_service.api.live.live_history import HISTORY_COLUMNS, SAMPLE_S, SAMPLES_MAX, LiveHistory
from select_service.auth.guard import UNRESTRICTED_GRANT, Grant
from tests.builders import worker_body

PROMPT = {"model_name": "m", "token_ids": list(range(34))}
RED = Grant(None, frozenset({"red"}), frozenset({"caller"}))


@pytest.fixture
def history(api):
    return LiveHistory(api.service.fleet.partitions, api.service.gate.waiting.backlog_of)


def take_sample(history, number):
    """Take one more sample with this number; return the number of turns."""
    turns = 1
    while history.step(number * SAMPLE_S):
        turns += 1
    return turns


def columns_at(history, now, grant=UNRESTRICTED_GRANT):
    return history.visible_columns(grant, now)


def test_before_the_first_sample_there_is_nothing(history):
    assert columns_at(history, 0.0) == {"ages_s": [], **{name: [] for name in HISTORY_COLUMNS}}


def test_decisions_are_differences_and_live_requests_are_counted(api, history):
    api.post("/workers", worker_body(1))
    take_sample(history, 0)
    for number in range(3):
        api.post("/select_and_reserve", PROMPT | {"reservation_id": f"r{number}"})
    take_sample(history, 1)
    api.delete_worker("/reservations/r0")
    api.post("/select", PROMPT)
    take_sample(history, 2)
    assert columns_at(history, 2 * SAMPLE_S + 0.5) == {
        "ages_s": [4.5, 2.5, 0.5],
        "decided": [0, 3, 1],
        "prompt_blocks": [0, 24, 8],
        "chosen_overlap": [0, 0, 0],
        "best_overlap": [0, 0, 0],
        "live": [0, 3, 2],
        "waiting": [0, 0, 0],
    }


def test_the_oldest_sample_is_dropped_after_ten_minutes(api, history):
    api.post("/workers", worker_body(1))
    api.post("/select", PROMPT)
    for number in range(SAMPLES_MAX + 5):
        if number == SAMPLES_MAX:
            api.post("/select", PROMPT)
        take_sample(history, number)
    found = columns_at(history, (SAMPLES_MAX + 4) * SAMPLE_S)
    assert len(found["ages_s"]) == SAMPLES_MAX - 1
    assert found["ages_s"][0] == (SAMPLES_MAX - 2) * SAMPLE_S
    assert found["decided"][-5:] == [1, 0, 0, 0, 0]
    assert sum(found["decided"]) == 1


def test_the_history_of_a_removed_partition_stays_and_a_new_one_begins_at_zero(api, history):
    take_sample(history, 0)
    for number in (1, 2):
        api.post("/workers", worker_body(1))
        api.post("/select", PROMPT)
        take_sample(history, 2 * number)
        api.delete_worker("/workers/1")
        take_sample(history, 2 * number + 1)
    assert columns_at(history, 9.0)["decided"] == [0, 1, 0, 1, 0]
    for number in range(SAMPLES_MAX):
        take_sample(history, number + 9)
    assert history._rows == history._before == {}


def test_a_key_that_is_bound_sees_its_tenants_only(api, history, monkeypatch):
    """Check also that an unrestricted key sees the partitions beyond the bound."""
    monkeypatch.setattr(live_history, "PARTITIONS_MAX", 2)
    monkeypatch.setattr(live_history, "PARTITIONS_PER_STEP", 2)
    tenants = "blue", "green", "red", "white"
    for worker_id, tenant in enumerate(tenants):
        api.post("/workers", worker_body(worker_id, tenant_id=tenant))
    take_sample(history, 0)
    for tenant in tenants:
        for _ in range(2 if tenant == "blue" else 1):
            api.post("/select", PROMPT | {"tenant_id": tenant})
    assert take_sample(history, 1) == 3
    assert columns_at(history, 3.0)["decided"] == [0, 5]
    assert columns_at(history, 3.0, RED)["decided"] == [0, 0]
    blue = Grant(None, frozenset({"blue"}), frozenset({"caller"}))
    assert columns_at(history, 3.0, blue)["decided"] == [0, 2]
    assert history._rows.keys() == {("m", "blue"), ("m", "green")}
