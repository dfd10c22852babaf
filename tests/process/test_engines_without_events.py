"""Tests of engines without KV events, through HTTP: the index is built from bookings."""

import pytest

from tests.builders import worker_body
from tests.builders.polling import eventually
from tests.builders.running import Running

pytestmark = pytest.mark.process

ON = {"SELECT_SERVICE_NO_ASSUMED_INDEX": "false"}
PROMPT = list(range(18))  # four blocks of four tokens, and a half


def book(service, name, tokens=PROMPT, worker_id=1, **fields):
    pin = {"worker_id": worker_id, "dp_rank": 0}
    body = {"model_name": "m", "token_ids": tokens, "reservation_id": name, "pinned_worker": pin}
    answer = service.call("POST", "/select_and_reserve", body | fields)
    assert answer.status == 200, answer.body
    return answer.body


def blocks(service, tokens=PROMPT):
    body = {"model_name": "m", "token_ids": tokens}
    rows = service.call("POST", "/overlap_scores", body).body["workers"]
    return [(row["device_blocks"], row.get("assumed_blocks", 0)) for row in rows]


def register(service, *worker_ids, **fields):
    for worker_id in worker_ids:
        assert service.call("POST", "/workers", worker_body(worker_id, **fields)).status == 201


@pytest.mark.parametrize("path", [(), ("--no-fast-path",)])
def test_a_conversation_stays_where_its_blocks_are_assumed(path):
    with Running(*path, **ON) as service:
        register(service, 1, 2, total_kv_blocks=1000)
        first = book(service, "a", worker_id=2)
        assert "certainty" not in first["overlap"]
        report = service.call("POST", "/reservations/a/prefill_complete", {"cached_tokens": 0})
        assert report.body == {"status": "ok"}
        end = service.call("DELETE", "/reservations/a", {"output_token_ids": list(range(18, 27))})
        assert end.body == {"status": "ok", "answer": "added"}
        turn = {"model_name": "m", "token_ids": list(range(30)), "reservation_id": "b"}
        second = service.call("POST", "/select_and_reserve", turn).body
        assert second["worker_id"] == 2
        assert second["overlap"]["gpu"] == second["overlap"]["assumed"] == 24
        assert second["overlap"]["certainty"] == "assumed"
        assert second["effective_prefill_tokens"] == 6
        service.call("POST", "/reservations/b/prefill_complete", {"cached_tokens": 16})
        service.call("DELETE", "/reservations/b")
        (_, record) = service.call("GET", "/workers").body
        assert record["assumed"]["0"] == {
            "source": "assumed",
            "blocks": 7,
            "size": 1000,
            "size_from": "total_kv_blocks",
            "ttl_s": None,
        }
        assert record["reported"]["0"]["over_tokens"] == 8
        metrics = service.call("GET", "/metrics").body.decode()
        assert 'select_service_cached_tokens_total{kind="over"} 8' in metrics
        explained = service.call("POST", "/explain", {"model_name": "m", "token_ids": PROMPT}).body
        assert max(row.get("assumed_tokens", 0) for row in explained["candidates"]) == 16
        assert 'select_service_index_blocks{model_name="m",tenant_id="default"} 0' in metrics
        assert 'select_service_assumed_blocks{model_name="m",tenant_id="default"} 7' in metrics
        cleared = service.call("POST", "/workers/2/cache_cleared")
        assert cleared.body == {"assumed_blocks": {"0": 7}}
        eventually(lambda: blocks(service) == [(0, 0), (0, 0)])
        codes = {f["code"] for f in service.call("GET", "/doctor").body["findings"]}
        assert "index_assumed" in codes
        assert service.stop() == 0


def test_wrong_reports_are_refused_and_change_nothing():
    with Running(**ON) as service:
        register(service, 1)
        book(service, "a")
        for verb, path, body, status in (
            ("POST", "/reservations/a/prefill_complete", {"cached_tokens": 19}, 400),
            ("POST", "/reservations/a/prefill_complete", {"cached_tokens": -1}, 422),
            ("POST", "/reservations/a/prefill_complete", {"cached_tokens": "1"}, 422),
            ("POST", "/reservations/x/prefill_complete", {"cached_tokens": 1}, 404),
            ("DELETE", "/reservations/x", {"output_token_ids": [1]}, 404),
            ("DELETE", "/reservations/a", {"output_token_ids": [-1]}, 422),
            ("DELETE", "/reservations/a", {"output_token_ids": [0] * 131_073}, 422),
            ("POST", "/workers/1/cache_cleared", {"dp_rank": 1}, 404),
            ("POST", "/workers/2/cache_cleared", {}, 404),
        ):
            answer = service.call(verb, path, body)
            assert (answer.status, "error" in answer.body) == (status, True), (verb, path, body)
        assert service.call("GET", "/reservations/a").body["state"] == "prefill"
        assert blocks(service) == [(4, 4)]


def test_the_assumed_index_can_be_off_and_on_for_single_workers():
    with Running(SELECT_SERVICE_NO_ASSUMED_INDEX="true") as service:
        register(service, 1)
        register(service, 2, index="assumed")
        book(service, "a")
        book(service, "b", worker_id=2)
        assert blocks(service) == [(0, 0), (4, 4)]
        refused = service.call("POST", "/workers", worker_body(3, index="guess"))
        assert refused.status == 422
        patched = service.call("PATCH", "/workers/1", {"index": "assumed"}).body
        assert patched["index"] == "assumed"
        book(service, "c")
        assert blocks(service) == [(4, 4), (4, 4)]


def test_a_state_file_keeps_the_source_of_the_index(tmp_path):
    state = ("--state-path", str(tmp_path / "state.json"))
    with Running(*state, DYN_USE_KV_EVENTS="true") as service:
        register(service, 1, index="assumed")
        assert service.stop() == 0
    with Running(*state, DYN_USE_KV_EVENTS="true") as service:
        (record,) = service.call("GET", "/workers").body
        assert (record["index"], record["lifecycle"]) == ("assumed", "schedulable")
        book(service, "a")
        assert blocks(service) == [(4, 4)]


def test_dynamos_time_to_live_ends_assumptions():
    with Running(**ON, DYN_ROUTER_TTL_SECS="0.5") as service:
        register(service, 1)
        book(service, "a")
        assert blocks(service) == [(4, 4)]
        eventually(lambda: blocks(service) == [(0, 0)])
