"""Tests of the routes of moved reservations: their events and confirmation."""

import asyncio
import json
from time import monotonic

import httpx
import pytest

from select_service.api.endpoints import migrations
from select_service.auth.guard import UNRESTRICTED_GRANT, Grant
from select_service.http.client_connection import ClientConnection
from tests.builders import worker_body
from tests.builders.in_process import Api


@pytest.fixture
def fleet():
    """Yield workers 1 and 2 of model `m`."""
    with Api("--health-checks=on") as api:
        for worker_id in (1, 2):
            assert api.post("/workers", worker_body(worker_id)).status == 201
        yield api


def reserve(api, name, worker_id=1, **fields):
    body = {"model_name": "m", "token_ids": list(range(12)), "reservation_id": name, **fields}
    answer = api.post("/reservations", {**body, "worker_id": worker_id})
    assert answer.status == 201, answer.body


def drain(api, worker_id=1):
    assert api.post(f"/workers/{worker_id}/drain", {"migrate": True}).status == 202
    settle(api)


def settle(api):
    selector = api.service.selector
    selector.run_pending(monotonic())
    while selector.health.mover.is_busy:
        selector.run_pending(monotonic())


def begin(api):
    """Return the number before the first event."""
    return api.service.mover.move_log.events_after(0, 1).next


TWO = {"worker_id": 2, "dp_rank": 0, "endpoint": "http://w2:8000"}


def test_reservations_of_a_drained_worker_are_events(fleet):
    first_seq = begin(fleet) + 1
    reserve(fleet, "a")
    reserve(fleet, "stays", migratable=False)
    drain(fleet)
    page = fleet.get("/migrations").body
    assert page["next"] == first_seq + 1
    assert "gap" not in page
    first, second = page["events"]
    assert first == {
        "seq": first_seq,
        "reservation_id": "a",
        "from": {"worker_id": 1, "dp_rank": 0},
        "to": TWO,
        "method": "reprefill",
        "estimated_ms": 2.4,
        "cause": "operator",
        "lockstep": True,
    }
    assert (second["reservation_id"], second["to"], second["method"]) == ("stays", None, "abort")
    page = fleet.get(f"/migrations?after={first_seq}").body
    assert page == {"events": [second], "next": first_seq + 1}
    assert fleet.get("/reservations/a").body["worker_id"] == 2


def test_a_worker_may_drain_without_its_reservations(fleet):
    reserve(fleet, "a")
    assert fleet.post("/workers/1/drain", {"migrate": False}).status == 202
    settle(fleet)
    assert fleet.get("/migrations").body == {"events": [], "next": begin(fleet)}
    assert fleet.get("/reservations/a").body["worker_id"] == 1


def test_a_number_of_an_earlier_process_is_a_gap(fleet):
    page = fleet.get("/migrations?after=99").body
    assert page == {"events": [], "next": begin(fleet), "gap": True}


def test_lifecycle_calls_of_a_moved_reservation_work_and_return_its_rank(fleet):
    reserve(fleet, "a")
    drain(fleet)
    calls = [
        ("POST", "/reservations/a/prefill_complete"),
        ("POST", "/reservations/a/output_block"),
        ("POST", "/reservations/a/renew"),
        ("DELETE", "/reservations/a"),
    ]
    for method, path in calls:
        answer = fleet.call(method, path)
        assert (answer.status, answer.body) == (200, {"status": "ok", "migrated_to": TWO})
    reserve(fleet, "a", worker_id=2)  # a repeated id is another reservation
    assert fleet.post("/reservations/a/renew").body == {"status": "ok"}


def test_a_move_is_confirmed_once(fleet):
    reserve(fleet, "a")
    drain(fleet)
    answer = fleet.post("/reservations/a/migrated", {"ok": True, "took_ms": 12.5})
    assert (answer.status, answer.body) == (200, {"method": "reprefill", "migrated_to": TWO})
    assert fleet.post("/reservations/a/renew").body == {"status": "ok"}
    assert fleet.get("/reservations/a").body["prefill_tokens"] == 0
    assert fleet.post("/reservations/a/migrated", {"ok": True}).status == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/migrations?after=x", None, 400),
        ("GET", "/migrations?timeout_ms=60001", None, 400),
        ("GET", "/migrations/stream?after=-1", None, 400),
        ("POST", "/reservations/none/migrated", {"ok": True}, 404),
        ("POST", "/reservations/a/migrated", {}, 422),
        ("POST", "/reservations/a/migrated", {"ok": True, "took_ms": -1}, 422),
    ],
)
def test_invalid_input_is_rejected(fleet, method, path, body, status):
    answer = fleet.call(method, path, body)
    assert answer.status == status, answer.body
    assert answer.body["code"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/migrations", None),
        ("GET", "/migrations/stream", None),
        ("POST", "/reservations/a/migrated", {"ok": True}),
    ],
)
def test_without_health_there_are_no_moves(api, method, path, body):
    answer = api.call(method, path, body)
    assert (answer.status, answer.body["code"]) == (409, "health_off")


def test_a_call_waits_until_something_moves(fleet):
    reserve(fleet, "a")

    async def wait_and_drain():
        call = fleet._client.get("/migrations?after=0&timeout_ms=60000")
        waiting = asyncio.ensure_future(call)
        while not fleet.service.limits.migration_waiters.used:
            await asyncio.sleep(0)
        assert not waiting.done()
        await fleet._client.post("/workers/1/drain")
        settle(fleet)
        return await waiting

    answer = fleet.run(wait_and_drain())
    assert [event["reservation_id"] for event in answer.body["events"]] == ["a"]
    assert fleet.service.limits.migration_waiters.used == 0


def test_a_call_that_waits_is_answered_when_its_time_or_the_service_ends(fleet):
    answer = fleet.get("/migrations?timeout_ms=1")
    assert answer.body == {"events": [], "next": begin(fleet)}

    async def wait_and_end():
        call = fleet._client.get("/migrations?timeout_ms=60000")
        waiting = asyncio.ensure_future(call)
        while not fleet.service.limits.migration_waiters.used:
            await asyncio.sleep(0)
        fleet.service.mover.notify_shutdown()
        return await waiting

    assert fleet.run(wait_and_end()).status == 200


def test_the_number_of_waiting_calls_is_bounded(fleet):
    fleet.service.limits.migration_waiters.total = 0
    assert fleet.get("/migrations?timeout_ms=1000").status == 503
    assert fleet.get("/migrations/stream").status == 503
    assert fleet.get("/migrations").status == 200


def read(stream):
    """Yield (event, id, data) of each piece of a stream, without comments."""
    for piece in stream.split("\n\n"):
        lines = dict(
            line.split(": ", 1) for line in piece.splitlines() if line[:1] not in (":", "")
        )
        if lines:
            yield lines["event"], lines.get("id"), json.loads(lines["data"])


def stream_of(api, headers=None, grant=UNRESTRICTED_GRANT):
    """Return the available part of a stream that begins after an event."""

    async def read_all():
        pieces, mover = [], api.service.mover
        begin = 0 if headers is None else int(headers[migrations.LAST_EVENT_ID])
        async for piece in migrations._stream_events(
            api.service, grant, mover, begin, ClientConnection()
        ):
            pieces.append(piece)
            if mover.move_log.next_number - 1 <= last_of(pieces):
                break
        return httpx.Response(200, content=b"".join(pieces))

    return list(read(api.run(read_all()).body))


def last_of(pieces):
    found = [int(seq or data["next"]) for _, seq, data in read(b"".join(pieces).decode())]
    return found[-1] if found else -1


def test_a_stream_continues_after_the_last_event_read(fleet):
    first = begin(fleet) + 1
    for name in "abc":
        reserve(fleet, name)
    drain(fleet)
    found = stream_of(fleet)
    numbers = [str(first + n) for n in range(3)]
    assert [(event, seq) for event, seq, _ in found] == [("migration", seq) for seq in numbers]
    assert found[0][2] == fleet.get("/migrations").body["events"][0]
    found = stream_of(fleet, {migrations.LAST_EVENT_ID: numbers[1]})
    assert [seq for _, seq, _ in found] == numbers[2:]
    ((event, _, _), *_) = stream_of(fleet, {migrations.LAST_EVENT_ID: "9"})
    assert event == "gap"


def test_the_head_of_a_stream_ends(fleet):
    answer = fleet.call("HEAD", "/migrations/stream")
    assert (answer.status, answer.body) == (200, "")


def test_a_stream_ends_with_the_service(fleet):
    reserve(fleet, "a")
    drain(fleet)

    async def stream():
        call = fleet._client.get("/migrations/stream", headers={migrations.LAST_EVENT_ID: "0"})
        waiting = asyncio.ensure_future(call)
        while not fleet.service.mover._watchers:
            await asyncio.sleep(0.001)
        fleet.service.mover.notify_shutdown()
        return await waiting

    answer = fleet.run(stream())
    assert answer.headers["content-type"].startswith("text/event-stream")
    (event,) = fleet.get("/migrations").body["events"]
    assert [seq for _, seq, _ in read(answer.body)] == [str(event["seq"])]


def test_reservations_leave_a_rank_with_a_lost_process(fleet):
    reserve(fleet, "a")
    body = {"outcome": "fatal", "reservation_id": "a"}
    assert fleet.post("/workers/1/outcome", body).status == 204
    settle(fleet)
    (event,) = fleet.get("/migrations").body["events"]
    assert (event["cause"], event["method"], event["to"]) == ("fatal", "reprefill", TWO)


def test_moves_of_other_tenants_are_not_shown(fleet):
    reserve(fleet, "a")
    drain(fleet)
    page = migrations.require_mover(fleet.service).move_log.events_after(0, 9)
    for tenants, n in ((None, 1), ({"default"}, 1), ({"red"}, 0)):
        grant = Grant(None, tenants, None)
        assert len(migrations._page_view(fleet.service, grant, page).events) == n
    assert len(stream_of(fleet, grant=Grant(None, frozenset({"default"}), None))) == 1
