"""Tests of long lists: pages of workers, ranks as columns, readiness without records."""

import pytest

from indexer.sockets.listener_status import StreamPulse
from select_service.api.compact_views import RANKS_PER_STEP, compact_ranks
from tests.builders import worker_body
from tests.builders.in_process import Api

COLUMNS = ("worker_ids", "dp_ranks", "prefill_tokens", "active_blocks", "active_requests")
STATES = ("states", "busy", "kv_usages", "event_states", "event_batches", "event_ages_s")
PROMPT = {"model_name": "m", "token_ids": list(range(34))}


@pytest.fixture
def scopes(api):
    """Return workers 7, 5, 3, 1 of two models, two ranks each; 5 is incomplete, 1 deleted."""
    for worker_id, model in ((7, "m"), (5, "n"), (3, "m"), (1, "n")):
        body = worker_body(worker_id, model_name=model, data_parallel_size=2, total_kv_blocks=10)
        assert api.post("/workers", body).status == 201
    api.post("/workers", {"worker_id": 5, "model_name": "n", "data_parallel_size": 2})
    assert api.delete_worker("/workers/1").status == 200
    return api


def rows(partition, names=COLUMNS + STATES):
    """Return the rows of columns, all of the same length."""
    return list(zip(*(partition[name] for name in names), strict=True))


def test_columns_agree_with_records_and_loads_for_every_rank(scopes):
    assert scopes.post("/busy_threshold", {"model": "m", "active_decode_blocks_threshold": 0.5})
    booked = scopes.post("/select_and_reserve", {**PROMPT, "reservation_id": "r"}).body
    m, n = scopes.get("/workers?view=compact").body["partitions"]
    (loads,) = scopes.get("/loads?model_name=m").body
    admission = {w["worker_id"]: w.get("admission") for w in scopes.get("/workers").body}
    assert (m["model_name"], m["tenant_id"], m["pending_count"]) == ("m", "default", 0)
    assert rows(m, COLUMNS) == [tuple(load.values()) for load in loads["loads"]]
    for worker_id, dp_rank, state, busy, usage in rows(
        m, ("worker_ids", "dp_ranks", "states", "busy", "kv_usages")
    ):
        rank = admission[worker_id]["ranks"][str(dp_rank)]
        assert (state, busy, usage) == ("schedulable", rank["busy"], rank["kv_usage"])
        assert busy is ((worker_id, dp_rank) == (booked["worker_id"], booked["dp_rank"]))
    assert rows(n, ("worker_ids", "states")) == 2 * [(1, "unschedulable")] + 2 * [(5, "incomplete")]
    assert rows(n)[0][2:] == (0, 0, 0, "unschedulable", False, None, None, 0, None)


def test_columns_of_loads_are_of_ranks_that_may_be_chosen(scopes):
    compact = scopes.get("/loads?view=compact").body
    (m,) = compact["partitions"]
    assert rows(m, COLUMNS[:2]) == [(3, 0), (3, 1), (7, 0), (7, 1)]
    assert compact["next"] is None
    assert set(m) == {"model_name", "tenant_id", "pending_count", "pending_isl_tokens", *COLUMNS}


def test_columns_show_listeners(tmp_path):
    with Api(DYN_USE_KV_EVENTS="true") as api:
        events = f"ipc://{tmp_path}/events"
        assert api.post("/workers", worker_body(1, kv_events_endpoint=events)).status == 201
        (partition,) = api.get("/workers?view=compact").body["partitions"]
    assert rows(partition, STATES[3:]) == [("no_events_yet", 0, None)]


def test_rows_with_bounded_overlaps_are_listed(scopes, monkeypatch):
    """Check that the field is absent without such rows; row numbers refer to the columns."""
    (partition, _) = scopes.get("/workers?view=compact").body["partitions"]
    assert "bounded_rows" not in partition
    pulse = StreamPulse("connected", 1, None, is_bound=True)
    find = {(3, 1): pulse, (7, 1): pulse, (3, 0): pulse._replace(is_bound=False)}.get
    monkeypatch.setattr(scopes.service.ingest, "pulse_of", find)
    (partition, _) = scopes.get("/workers?view=compact").body["partitions"]
    bounded = [rows(partition, COLUMNS[:2])[row] for row in partition["bounded_rows"]]
    assert bounded == [(3, 1), (7, 1)]


def test_columns_show_health():
    with Api("--health-checks=on", "--health-reporters=nobody") as api:
        assert api.post("/workers", worker_body(1)).status == 201
        assert api.post("/workers/1/drain", {}).body["state"] == "draining"
        (partition,) = api.get("/workers?view=compact").body["partitions"]
    assert partition["states"] == ["drained"]


def test_a_worker_removed_between_steps_is_left_out(api):
    half = RANKS_PER_STEP // 2
    for worker_id in (1, 2, 3, 4):
        body = worker_body(worker_id, data_parallel_size=half)
        assert api.post("/workers", body).status == 201
    steps = compact_ranks(api.service, api.service.selector.list_workers())
    assert next(steps) is None
    assert api.delete_worker("/workers/4").status == 200
    assert api.post("/workers", worker_body(3, data_parallel_size=half)).status == 201
    *_, shown = steps
    assert set(shown.worker_ids) == {1, 2, 4}
    assert set(shown.states[2 * half :]) == {"unschedulable"}
    assert {len(getattr(shown, name)) for name in COLUMNS + STATES} == {3 * half}


def pages(api, path):
    """Yield all bodies from this path on, by the links."""
    answer = api.get(path)
    yield answer.body
    while "link" in answer.headers:
        target, relation = answer.headers["link"].split("; ")
        assert relation == 'rel="next"'
        answer = api.get(target.strip("<>"))
        yield answer.body


def by_id(workers):
    return {w["worker_id"]: w | {"deleted": None} for w in workers}


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_pages_together_are_the_list(scopes, limit):
    found = list(pages(scopes, f"/workers?limit={limit}"))
    assert [len(page) for page in found[:-1]] == [limit] * (len(found) - 1)
    ids = [[worker["worker_id"] for worker in page] for page in found]
    assert all(max(ids[i]) < min(ids[i + 1]) for i in range(len(ids) - 1))
    assert by_id(worker for page in found for worker in page) == by_id(scopes.get("/workers").body)


def test_pages_of_loads_hold_the_ranks_of_their_workers(scopes):
    found = list(pages(scopes, "/loads?limit=2&model_name=m&tenant_id=default"))
    assert found == [scopes.get("/loads").body]
    (whole,) = scopes.get("/loads").body
    (first,), (second,) = (page for page in pages(scopes, "/loads?limit=1") if page)
    assert (first["loads"], second["loads"]) == (whole["loads"][:2], whole["loads"][2:])
    assert scopes.get("/loads?after=7").body == []


@pytest.mark.parametrize("path", ["/workers", "/loads"])
def test_compact_pages_link_to_the_next(scopes, path):
    found = list(pages(scopes, f"{path}?view=compact&limit=3"))
    assert [page["next"] for page in found] == [5, None]
    last = scopes.get(f"{path}?view=compact&after=5").body
    assert last == found[1]
    assert [partition["worker_ids"] for partition in last["partitions"]] == [[7, 7]]


@pytest.mark.parametrize("path", ["/workers", "/loads"])
@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("view=small", "view: expected full or compact, got `small`"),
        ("limit=0", "limit: expected a whole number from 1 to 4096, got 0"),
        ("limit=4097", "limit: expected a whole number from 1 to 4096, got 4097"),
        ("after=-1", "after: expected a whole number, got `-1`"),
    ],
)
def test_invalid_pages_are_rejected(api, path, query, text):
    answer = api.get(f"{path}?{query}")
    assert (answer.status, answer.body) == (400, {"error": text, "code": "bad_request"})


def test_readiness_without_records(scopes):
    short = scopes.get("/ready?records=false")
    assert short.status == 200
    assert short.body == {"ready": True, "schedulable_workers": 2, "workers": []}
    whole = scopes.get("/ready?records=true").body
    assert by_id(whole["workers"]) == by_id(scopes.get("/ready").body["workers"])
    assert scopes.get("/ready?records=no").status == 400
