"""Tests of the catalog over HTTP, and of the listeners that follow it."""

import asyncio
import logging

import msgspec
import pytest

from indexer.index.cache_group_status import CacheGroupStatus, GroupStatus
from indexer.index.prefix_index import PrefixIndex
from select_service.api import worker_views
from select_service.api.endpoints import workers
from select_service.core.registry.fleet.fleet import WorkerFleet
from tests.builders import worker_body
from tests.builders.in_process import Api
from tests.metrics.test_metrics import a_status

RECORD = [
    "worker_id",
    "model_name",
    "tenant_id",
    "routing_group",
    "lifecycle",
    "endpoint",
    "kv_events_endpoint",
    "replay_endpoint",
    "block_size",
    "data_parallel_start_rank",
    "data_parallel_size",
    "max_num_batched_tokens",
    "total_kv_blocks",
    "stable_routing_id",
    "is_eagle",
    "taints",
    "topology_domains",
    "kv_transfer_domain",
    "kv_transfer_enforcement",
    "kv_transfer_preferred_weight",
]


@pytest.fixture
def listening(tmp_path):
    with Api(DYN_USE_KV_EVENTS="true") as service:
        service.endpoint = f"ipc://{tmp_path}/events"
        yield service


def test_a_registered_worker_is_answered_in_the_order_of_the_reference(api):
    answer = api.post("/workers", worker_body(1))
    assert answer.status == 201
    assert list(answer.body) == RECORD
    assert answer.body["lifecycle"] == "schedulable"


def test_registering_again_replaces_the_record(api):
    api.post("/workers", worker_body(1, taints=["a"]))
    answer = api.post("/workers", worker_body(1))
    assert answer.status == 201
    assert answer.body["taints"] == []
    assert len(api.get("/workers").body) == 1


def test_an_incomplete_worker_is_created_with_reasons(api):
    answer = api.post("/workers", {"worker_id": 1})
    assert answer.status == 201
    assert answer.body["lifecycle"] == "incomplete"
    assert answer.body["not_schedulable_reasons"] == [
        "endpoint is required",
        "block_size is required: give the block size of the engine (vLLM --block-size, SGLang "
        "--page-size)",
    ]
    assert api.get("/ready?workers=false").status == 200
    assert api.get("/ready?workers=true").status == 503
    assert api.get("/ready?workers=no").status == 400
    ready = api.get("/ready")
    assert ready.status == 503
    assert ready.body["workers"] == [answer.body]
    assert ready.body["reason"].startswith("no registered worker is schedulable: ")


def test_a_service_that_is_not_ready_names_the_reason(api):
    body = api.get("/ready").body
    assert body["reason"] == "no worker is registered: POST /workers, or --workers-file"
    api.post("/workers", worker_body(1))
    assert "reason" not in api.get("/ready").body
    api.service.process.is_draining = True
    ready = api.get("/ready")
    assert ready.status == 503
    assert ready.body["reason"] == "the process is draining before it ends"
    api.service.process.is_draining = False
    api.delete_worker("/workers/1")
    assert api.get("/ready").body["reason"].startswith("no worker is registered")


def test_a_patch_completes_a_worker(api):
    api.post("/workers", {"worker_id": 1})
    answer = api.patch("/workers/1", {"endpoint": "http://w", "block_size": 4})
    assert (answer.status, answer.body["lifecycle"]) == (200, "schedulable")
    ready = api.get("/ready")
    assert (ready.status, ready.body["schedulable_workers"]) == (200, 1)


def test_a_deleted_worker_is_unschedulable_and_may_be_deleted_again(fleet):
    for _ in range(2):
        answer = fleet.delete_worker("/workers/1")
        assert (answer.status, answer.body["lifecycle"]) == (200, "unschedulable")
    assert fleet.post("/select", {"model_name": "m", "token_ids": [1]}).status == 503
    assert fleet.patch("/workers/1", {}).body["lifecycle"] == "schedulable"


def test_records_of_workers_deleted_long_ago_can_be_left_out(api, monkeypatch):
    for worker_id in (1, 2):
        api.post("/workers", worker_body(worker_id))
    api.delete_worker("/workers/1")

    def ids(query=""):
        return [record["worker_id"] for record in api.get(f"/workers{query}").body]

    assert ids("?deleted=recent") == ids("?deleted=all") == ids() == [1, 2]
    monkeypatch.setattr(workers, "RECENT_S", -1.0)
    assert ids("?deleted=recent") == [2]
    (columns,) = api.get("/workers?deleted=recent&view=compact").body["partitions"]
    assert columns["worker_ids"] == [2]
    assert ids("?deleted=all") == ids() == [1, 2]
    refused = api.get("/workers?deleted=none")
    assert (refused.status, refused.body["code"]) == (400, "bad_request")
    assert api.get("/workers/1").body["lifecycle"] == "unschedulable"


HINTS = {
    "router_hint_worker_type": "agg",
    "router_hint_source_control_endpoints": {"0": "tcp://worker-1:5600", "7": "x"},
}


def test_fields_for_hints_are_kept_changed_and_shown_last(api):
    answer = api.post("/workers", worker_body(1, **HINTS))
    assert list(answer.body) == [*RECORD, *HINTS]
    assert answer.body.items() >= HINTS.items()
    nothing = dict.fromkeys(HINTS)
    assert api.patch("/workers/1", nothing).body.items() >= HINTS.items()
    emptied = {"router_hint_worker_type": "", "router_hint_source_control_endpoints": {}}
    answer = api.patch("/workers/1", emptied).body
    assert answer["router_hint_worker_type"] == ""
    assert "router_hint_source_control_endpoints" not in answer
    api.patch("/workers/1", HINTS)
    (kept,) = api.get("/state").body["workers"]
    assert kept["given"].items() >= HINTS.items()
    assert not api.post("/workers", worker_body(1)).body.keys() & HINTS.keys()


@pytest.mark.parametrize(
    ("field", "value", "status", "text"),
    [
        ("router_hint_worker_type", 1, 422, "expected a text"),
        ("router_hint_worker_type", "x" * 513, 422, "at most 512"),
        ("router_hint_source_control_endpoints", [], 422, "expected an object"),
        ("router_hint_source_control_endpoints", {"0": None}, 422, "expected a text"),
        ("router_hint_source_control_endpoints", {"0": ""}, 422, "at least 1"),
        ("router_hint_source_control_endpoints", {"0": "x" * 2049}, 422, "at most 2048"),
        (
            "router_hint_source_control_endpoints",
            {str(rank): "x" for rank in range(1025)},
            422,
            "at most 1024",
        ),
        ("router_hint_source_control_endpoints", {"x": "a"}, 400, "is `x`: expected a data-"),
        ("router_hint_source_control_endpoints", {"": "a"}, 400, "expected a data-parallel rank"),
        ("router_hint_source_control_endpoints", {"-1": "a"}, 422, "from 0 to 4294967295"),
        ("router_hint_source_control_endpoints", {"4294967296": "a"}, 422, "is `4294967296`"),
        ("router_hint_source_control_endpoints", {"9" * 5000: "a"}, 422, "from 0 to 4294967295"),
    ],
)
def test_wrong_fields_for_hints_are_refused(api, field, value, status, text):
    answer = api.post("/workers", worker_body(1, **{field: value}))
    assert (answer.status, api.get("/workers").body) == (status, [])
    assert text in answer.body["error"]
    api.post("/workers", worker_body(1, **HINTS))
    answer = api.patch("/workers/1", {field: value})
    assert answer.status == status
    assert api.get("/workers").body[0].items() >= HINTS.items()


def test_null_for_control_endpoints_is_refused_in_a_registration(api):
    body = worker_body(1, router_hint_source_control_endpoints=None)
    answer = api.post("/workers", body)
    assert (answer.status, api.get("/workers").body) == (422, [])
    assert "expected an object, got null" in answer.body["error"]


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_an_unknown_worker_is_not_found(api, method):
    answer = api.call(method, "/workers/99", {})
    assert answer.status == 404
    assert answer.body == {"error": "worker 99 not found", "code": "not_found"}


def test_the_listing_is_sorted_and_filtered(api):
    for worker_id, model, tenant in ((3, "b", "x"), (2, "a", "y"), (1, "b", "x"), (9, "a", "x")):
        api.post("/workers", worker_body(worker_id, model_name=model, tenant_id=tenant))

    def ids(query=""):
        return [record["worker_id"] for record in api.get(f"/workers{query}").body]

    assert ids() == [9, 2, 1, 3]
    assert ids("?model_name=b") == [1, 3]
    assert ids("?routing_group=y") == [2]
    assert ids("?model_name=a&tenant_id=x") == [9]


def test_a_listener_opens_and_closes_with_its_worker(listening):
    listening.post("/workers", worker_body(7, kv_events_endpoint=listening.endpoint))
    (record,) = listening.get("/workers").body
    status = record["kv_events"]["0"]
    assert status["state"] == "no_events_yet"
    assert status["batches"] == 0
    assert status["seconds_since_last_event"] is None
    shown = listening.get("/ready").body["workers"][0]["kv_events"]["0"]
    assert shown | {"connect_error": ...} == status | {"connect_error": ...}
    listening.delete_worker("/workers/7")
    assert "kv_events" not in listening.get("/workers").body[0]
    assert listening.service.ingest.sources() == {}


def test_without_its_event_endpoint_a_worker_is_incomplete(listening):
    answer = listening.post("/workers", worker_body(7))
    assert answer.body["not_schedulable_reasons"] == [
        "kv_events endpoint is required for dp_rank 0 (field kv_events_endpoint, or "
        '"0" of kv_events_endpoints); if the engine publishes none, `index`: "assumed"'
    ]


def test_every_change_of_a_worker_is_one_info_line(api, caplog):
    with caplog.at_level(logging.INFO, "select_service"):
        api.post("/workers", {"worker_id": 1}, traceparent="00-a-b-01")
        api.patch("/workers/1", {"endpoint": "http://w", "block_size": 4})
        api.delete_worker("/workers/1")
    lines = [(record.message, record.fields["lifecycle"]) for record in caplog.records]
    assert lines == [
        ("worker registered", "incomplete"),
        ("worker changed", "schedulable"),
        ("worker deleted", "unschedulable"),
    ]
    first = caplog.records[0].fields
    assert first["reasons"][0] == "endpoint is required"
    assert first["reasons"][1].startswith("block_size is required")
    assert first["traceparent"] == "00-a-b-01"


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("kv_events_endpoint", "127.0.0.1:5557", "did you mean `tcp://127.0.0.1:5557`?"),
        ("kv_events_endpoint", "tcp://a:0", "`tcp://a:0`: TCP port 0 cannot be connected to"),
        ("replay_endpoint", "tcp://a:0", "`tcp://a:0`: TCP port 0 cannot be connected to"),
    ],
)
def test_an_implausible_event_endpoint_has_a_reason(listening, field, value, text):
    right = {"kv_events_endpoint": "tcp://127.0.0.1:1"}
    answer = listening.post("/workers", worker_body(7) | right | {field: value})
    assert answer.body["lifecycle"] == "incomplete"
    assert answer.body["not_schedulable_reasons"][0].endswith(text)


def test_a_wrong_address_of_metrics_is_shown_with_an_example(api):
    answer = api.post("/workers", worker_body(7, metrics_endpoint="foo"))
    assert answer.status == 400
    assert answer.body["error"] == (
        "invalid metrics_endpoint `foo`: it does not begin with http:// or https://; "
        "expected one like http://worker-1:8000/metrics"
    )


def test_the_list_hints_at_probable_mistakes_of_a_registration(listening):
    body = {"endpoint": "w:8000", "kv_events_endpoint": listening.endpoint}
    seven = worker_body(7) | body | {"replay_endpoint": listening.endpoint}
    assert len(listening.post("/workers", seven).body["hints"]) == 2
    eight = listening.post("/workers", worker_body(8) | {"kv_events_endpoint": listening.endpoint})
    first, second = listening.get("/workers").body
    assert [hint.split()[0] for hint in first["hints"]] == ["endpoint", "the", "KV"]
    assert "worker 7 dp_rank 0" in second["hints"][0]
    assert eight.body["hints"] == second["hints"]
    assert [row["hints"] for row in listening.get("/ready").body["workers"]] == [
        first["hints"],
        second["hints"],
    ]
    patched = listening.patch("/workers/7", {"endpoint": "http://w"}).body
    assert patched["hints"] == first["hints"][1:]
    listening.delete_worker("/workers/7")
    assert "hints" not in listening.get("/workers").body[1]


@pytest.mark.parametrize("verb", ["post", "patch"])
def test_room_for_more_ranks_is_reserved_in_advance(api, verb, monkeypatch):
    """Check that room is reserved in turns, so that the change itself needs no growth."""
    api.post("/workers", worker_body(1, data_parallel_size=63))
    api.post("/workers", worker_body(2))
    had_room, reserve = [], PrefixIndex.reserve_slots

    def reserving(index, more):
        had_room.append(index.has_room(more))
        return reserve(index, more)

    monkeypatch.setattr(PrefixIndex, "reserve_slots", reserving)
    if verb == "post":
        assert api.post("/workers", worker_body(3)).status == 201
    else:
        assert api.patch("/workers/2", {"data_parallel_size": 2}).status == 200
    assert had_room == [True]


@pytest.mark.parametrize(("ranks", "order"), [(2, ["put", "others"]), (512, ["others", "put"])])
def test_a_worker_of_many_ranks_is_added_in_a_separate_turn(api, ranks, order, monkeypatch):
    seen, making_room, put = [], WorkerFleet.prepare_room, WorkerFleet.put_worker

    def room_is_made(fleet, worker):
        yield from making_room(fleet, worker)
        asyncio.get_running_loop().call_soon(seen.append, "others")

    def is_put(fleet, worker):
        seen.append("put")
        put(fleet, worker)

    monkeypatch.setattr(WorkerFleet, "prepare_room", room_is_made)
    monkeypatch.setattr(WorkerFleet, "put_worker", is_put)
    assert api.post("/workers", worker_body(1, data_parallel_size=ranks)).status == 201
    assert seen == order


def test_a_declared_speed_is_shown_and_changed(api):
    body = api.post("/workers", worker_body(7, prefill_tokens_per_s=9700)).body
    assert (body["prefill_tokens_per_s"], body["lifecycle"]) == (9700.0, "schedulable")
    assert api.patch("/workers/7", {"prefill_tokens_per_s": 24600.5}).status == 200
    assert api.patch("/workers/7", {"taints": ["x"]}).body["prefill_tokens_per_s"] == 24600.5
    assert api.get("/workers").body[0]["prefill_tokens_per_s"] == 24600.5
    assert "prefill_tokens_per_s" not in api.post("/workers", worker_body(7)).body


@pytest.mark.parametrize("speed", [0, -1, 0.5, 1e10, "fast", True])
def test_an_implausible_speed_is_rejected(api, speed):
    answer = api.post("/workers", worker_body(7, prefill_tokens_per_s=speed))
    assert answer.status == 422
    assert "prefill_tokens_per_s" in answer.body["error"]
    assert api.get("/workers").body == []


def test_unknown_fields_and_engines_of_an_address_are_shown():
    status = a_status(unknown_fields={"flavour": 2}, engine_changes=1)
    view = msgspec.to_builtins(worker_views._kv_event_status(status, 1.0))
    assert (view["unknown_fields"], view["engine_changes"]) == ({"flavour": 2}, 1)
    view = msgspec.to_builtins(worker_views._kv_event_status(a_status(), 1.0))
    assert not {"unknown_fields", "engine_changes"} & view.keys()


FACTS = {
    "eagle_drop": True,
    "eagle_groups": [2],
    "chunk": 8192,
    "context_parallel": True,
    "replay": 128,
    "salted": True,
    "hash": {"algorithm": "sha256_cbor", "seed": "vllm-none-hash"},
    "certainty": "at_most",
}


def test_facts_about_the_cache_are_kept_and_shown(api):
    assert api.post("/workers", worker_body(1, kv_cache=FACTS)).body["kv_cache"] == FACTS
    assert api.patch("/workers/1", {"taints": ["a"]}).body["kv_cache"] == FACTS
    answer = api.patch("/workers/1", {"kv_cache": {"eagle_drop": False}})
    assert answer.body["kv_cache"] == {"eagle_drop": False}
    assert api.get("/workers/1").body["kv_cache"] == {"eagle_drop": False}
    assert "kv_cache" not in api.post("/workers", worker_body(1)).body


def test_unknown_facts_about_the_cache_are_ignored_with_a_warning(api):
    answer = api.post("/workers", worker_body(1, kv_cache={"eagle_drop": True, "later": [1]}))
    assert answer.status == 201
    assert answer.body["kv_cache"] == {"eagle_drop": True}


@pytest.mark.parametrize(
    ("facts", "place"),
    [
        ([], "kv_cache"),
        ({"eagle_drop": 1}, "kv_cache.eagle_drop"),
        ({"eagle_groups": [-1]}, "kv_cache.eagle_groups"),
        ({"eagle_groups": [0] * 33}, "kv_cache.eagle_groups"),
        ({"chunk": 0}, "kv_cache.chunk"),
        ({"replay": -1}, "kv_cache.replay"),
        ({"hash": "sha256"}, "kv_cache.hash"),
        ({"hash": {"seed": 7}}, "kv_cache.hash.seed"),
        ({"certainty": "at_least"}, "kv_cache.certainty"),
    ],
)
def test_wrong_facts_about_the_cache_are_refused_by_name(api, facts, place):
    for answer in (
        api.post("/workers", worker_body(1, kv_cache=facts)),
        api.patch("/workers/1", {"kv_cache": facts}),
    ):
        assert 400 <= answer.status < 500
        assert place in answer.body["error"]
    assert api.get("/workers").body == []


def test_cache_groups_of_a_rank_are_shown():
    groups = CacheGroupStatus(
        groups=(
            GroupStatus(0, "mamba", 64, 4, False, 12),
            GroupStatus(1, "full_attention", 64, 0, True, 34),
        ),
        unit=16,
        reasons=("one", "another"),
    )
    view = msgspec.to_builtins(worker_views._kv_event_status(a_status(cache_groups=groups), 1.0))
    assert view["groups"] == [
        {"group": 0, "kind": "mamba", "block_size": 64, "blocks": 12},
        {"group": 1, "kind": "full_attention", "block_size": 64, "blocks": 34},
    ]
    assert (view["unit"], view["lookahead"]) == (16, 0)
    assert (view["certainty"], view["why"]) == ("at_most", "one; another")
    exact = a_status(cache_groups=groups._replace(reasons=()))
    view = msgspec.to_builtins(worker_views._kv_event_status(exact, 1.0))
    assert (view["certainty"], view["why"]) == ("exact", None)
    view = msgspec.to_builtins(worker_views._kv_event_status(a_status(), 1.0))
    assert not {"groups", "unit", "lookahead", "certainty", "why"} & view.keys()
