"""Tests of the stream read by the page: content, access, frequency, and idle periods."""

import asyncio
import json
from time import monotonic

import pytest

from select_service.api import fleet_frames
from select_service.api.live import live_stream
from select_service.api.live.live_stream import FRAME_INTERVAL_S, FrameBroadcaster, FrameContents
from select_service.api.process_limits import LIVE_STREAMS_MAX
from select_service.auth.guard import UNRESTRICTED_GRANT, Grant
from tests.builders import worker_body
from tests.builders.in_process import Api
from tests.builders.keys import bearer, entry, keys_file

PROMPT = {"model_name": "m", "token_ids": list(range(34))}


def frames(api, n=1, grant=UNRESTRICTED_GRANT):
    """Return the first frames of a stream."""

    async def read():
        stream = await stream_of(api, grant)
        found = [await anext(stream) for _ in range(n)]
        await stream.aclose()
        return found

    return [data_of(event) for event in api.wait_for(read())]


async def stream_of(api, grant=UNRESTRICTED_GRANT):
    """Return a stream positioned after the history."""
    stream = fleet_frames.stream_frames(api.service, grant)
    assert (await anext(stream)).startswith(b"event: history\ndata: {")
    return stream


def data_of(event):
    name, data = event.decode().strip().split("\n")[1:]
    assert name == "event: fleet"
    return json.loads(data.removeprefix("data: "))


@pytest.fixture
def soon(monkeypatch):
    """Let frames follow each other without a pause."""
    monkeypatch.setattr(live_stream, "FRAME_INTERVAL_S", 0.0)
    monkeypatch.setattr(live_stream, "CPU_SHARE_MAX", 1e9)


def test_a_frame_has_ranks_decisions_and_the_queue(fleet):
    booked = fleet.post("/select_and_reserve", {**PROMPT, "reservation_id": "r"}).body
    (frame,) = frames(fleet)
    (partition,) = frame["partitions"]
    assert partition["ranks"] == fleet.get("/workers?view=compact").body["partitions"][0]
    numbers = {name: partition[name] for name in partition if name != "ranks"}
    assert numbers == {
        "block_size": 4,
        "policy": "work",
        "decided": 1,
        "prompt_blocks": 8,
        "chosen_overlap": 0,
        "best_overlap": 0,
        "checks_refused": [],
    }
    (decision,) = frame["decisions"]
    assert (decision["reservation_id"], decision["worker_id"]) == ("r", booked["worker_id"])
    assert (frame["version"], frame["interval_s"]) == ("1.2.3", FRAME_INTERVAL_S)
    assert (frame["queue"], frame["queueing"]) == ([], False)
    assert not frame.keys() & {"replicas", "shared_caches"}


def test_a_frame_has_pairs(fleet):
    body = {**PROMPT, "reservation_id": "r", "local": "never"}
    assert fleet.post("/select_pair_and_reserve", body).status == 200
    (frame,) = frames(fleet)
    pairs = frame["pairs"]
    assert (pairs["remote"], pairs["local"]) == (1, 0)
    assert (pairs["prefill_legs"], pairs["decode_legs"], pairs["transfers"]) == (1, 1, 1)
    assert pairs["links"] == []  # no worker names its host


def test_a_frame_has_replicas(replica):
    replica.post("/replica_sync/register_peer", {"endpoint": "tcp://peer:1"})
    (frame,) = frames(replica)
    assert [peer["endpoint"] for peer in frame["replicas"]["peers"]] == ["tcp://peer:1"]


def test_a_frame_has_shared_caches_with_silent_ones_first(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet_frames, "SHARED_CACHES_SHOWN", 2)
    entry = {"type": "lmcache", "url": "http://127.0.0.1:9", "sharing": "p2p"}
    path = tmp_path / "caches.yaml"
    path.write_text(json.dumps({"models": dict.fromkeys(["l", "m", "n"], entry)}))
    with Api("--shared-caches", str(path)) as api:
        assert api.post("/workers", worker_body(1, model_name="n")).status == 201
        assert api.post("/select", {**PROMPT, "model_name": "n"}).status == 200
        (frame,) = frames(api)
        shown = [(each["model_name"], each["answering"]) for each in frame["shared_caches"]]
        assert shown == [("n", False), ("l", None)]


def test_unschedulable_workers_are_shown(api):
    assert api.post("/workers", {"worker_id": 5, "model_name": "n"}).status == 201
    (frame,) = frames(api)
    (partition,) = frame["partitions"]
    assert partition["ranks"]["states"] == ["incomplete"]
    assert (partition["policy"], partition["decided"]) == (None, 0)


def test_later_frames_have_the_changes(fleet, soon):
    async def read():
        stream = await stream_of(fleet)
        before = await anext(stream)
        fleet.service.selector.delete_worker(1, monotonic())
        return before, await anext(stream)

    before, after = map(data_of, fleet.wait_for(read()))
    assert before["partitions"][0]["ranks"]["states"] == 2 * ["schedulable"]
    assert after["partitions"] == []  # GET /workers keeps this record for a while


def test_without_decisions_there_are_frames():
    with Api("--decisions", "0") as api:
        assert frames(api)[0]["decisions"] == []


def test_a_key_that_is_bound_sees_its_tenants_only(api):
    for worker_id, tenant in ((1, "red"), (2, "blue")):
        api.post("/workers", worker_body(worker_id, tenant_id=tenant))
        body = {**PROMPT, "tenant_id": tenant, "reservation_id": f"of {tenant}"}
        assert api.post("/select_and_reserve", body).status == 200
    bound = Grant(None, frozenset({"red"}), frozenset({"operator"}))
    caller = Grant(None, None, frozenset({"caller"}))
    for grant, tenants in ((bound, ["red"]), (caller, ["blue", "red"])):
        (frame,) = frames(api, grant=grant)
        assert [part["ranks"]["tenant_id"] for part in frame["partitions"]] == tenants
        assert sorted(each["tenant_id"] for each in frame["decisions"]) == tenants
        assert not frame.keys() & {"queue", "queueing", "replicas"}


def test_a_stream_ends_when_the_keys_are_others(tmp_path, soon):
    path = keys_file(tmp_path, entry("web", "caller"))
    with Api("--api-keys-file", str(path)) as api:
        assert api.get("/live").status == 401

        async def read():
            stream = await stream_of(api)
            await anext(stream)
            assert api.service.guard.replace_keys([])
            return [event async for event in stream]

        assert api.wait_for(read()) == []
        assert api.call("GET", "/live", authorization=bearer("web")).status == 401


def watch_frames(costs, n_watchers=1):
    """Return (creation times of frames, frame numbers seen by each watcher).

    costs: CPU time of each frame, seconds
    """
    made = []

    async def look():
        made.append(monotonic())
        return FrameContents([], [], {}, costs[len(made) - 1] if len(made) <= len(costs) else 0.0)

    async def watch(shown):
        numbers = [0]
        while numbers[-1] < len(costs):
            numbers.append((await shown.frame_after(numbers[-1], look)).number)
        return numbers[1:]

    async def all_of_them():
        shown = FrameBroadcaster()
        return await asyncio.gather(*(watch(shown) for _ in range(n_watchers)))

    return made, asyncio.run(all_of_them())


def test_all_watchers_get_the_same_frames(monkeypatch):
    monkeypatch.setattr(live_stream, "FRAME_INTERVAL_S", 0.05)
    made, seen = watch_frames([0.0] * 5, n_watchers=10)
    assert 5 <= len(made) < 10
    assert all(numbers == sorted(set(numbers)) and numbers[-1] >= 5 for numbers in seen)


def test_frames_have_an_interval(monkeypatch):
    monkeypatch.setattr(live_stream, "FRAME_INTERVAL_S", 0.05)
    monkeypatch.setattr(live_stream, "CPU_SHARE_MAX", 0.1)
    made, _ = watch_frames([0.0, 0.02, 0.0])
    first, second = (made[i + 1] - made[i] for i in range(2))
    assert first >= 0.05
    assert second >= 0.2


def test_no_frame_is_created_without_watchers(fleet):
    frames(fleet)
    number = fleet.service.live.frame_broadcaster._frame.number

    async def later():
        await asyncio.sleep(1.5 * FRAME_INTERVAL_S)

    fleet.wait_for(later())
    assert fleet.service.live.frame_broadcaster._frame.number == number == 1


def test_a_late_watcher_gets_no_old_frame(fleet, monkeypatch):
    monkeypatch.setattr(live_stream, "FRAME_INTERVAL_S", 0.01)
    frames(fleet)
    fleet.service.selector.delete_worker(1, monotonic())

    async def pause():
        await asyncio.sleep(0.05)

    fleet.wait_for(pause())
    (frame,) = frames(fleet)
    assert frame["partitions"] == []


def test_streams_are_bounded_and_end_with_the_service(fleet):
    async def watch():
        calls = [fleet._client.get("/live") for _ in range(LIVE_STREAMS_MAX + 3)]
        answers = [asyncio.ensure_future(call) for call in calls]
        while fleet.service.limits.live_streams.used < LIVE_STREAMS_MAX:
            await asyncio.sleep(0.001)
        fleet.service.live.frame_broadcaster.end_streams()
        return await asyncio.gather(*answers)

    statuses = sorted(answer.status_code for answer in fleet.wait_for(watch()))
    assert statuses == [200] * LIVE_STREAMS_MAX + [503] * 3
    assert fleet.service.limits.live_streams.used == 0


def test_the_head_of_a_stream_has_no_stream(api):
    answer = api.call("HEAD", "/live")
    assert (answer.status, answer.body) == (200, "")
    assert answer.headers["content-type"].startswith("text/event-stream")
