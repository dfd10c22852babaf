"""Tests of examined workers, permitted callers, and concurrent examinations."""

import asyncio

import pytest

from tests.builders import worker_body
from tests.builders.in_process import Api
from tests.builders.keys import bearer, entry, keys_file


@pytest.fixture
def wide(api):
    """Return a service with workers 1 to 5; these tests never call the engines."""
    for worker_id in range(1, 6):
        body = worker_body(worker_id, endpoint="nats://subject")
        assert api.post("/workers", body).status == 201
    return api


def test_a_service_without_workers_has_that_finding(api):
    report = api.get("/doctor").body
    codes = [each["code"] for each in report["findings"]]
    assert "no_workers" in codes
    assert (report["examined"], report["next"]) == ([], None)
    machine = report["machine"]
    assert machine["version"] == "1.2.3"
    assert machine["descriptors"] > 0
    assert machine["memory_bytes"] > 10_000_000
    assert {"numba", "numpy", "libzmq"} <= machine["libraries"].keys()


def test_workers_are_examined_in_pages_by_their_ids(wide):
    seen, after = [], ""
    for expected in ([1, 2], [3, 4], [5]):
        report = wide.get(f"/doctor?limit=2{after}").body
        assert report["examined"] == expected
        assert ("machine" in report) == (not after)
        seen += report["examined"]
        after = f"&after={report['next']}"
    assert report["next"] is None
    assert wide.delete_worker("/workers/4").status == 200
    assert wide.get("/doctor?after=3").body["examined"] == [5]
    assert wide.get("/doctor?worker_id=4").status == 404


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=65", "limit=x", "after=-1", "probe=maybe", "worker_id=x"]
)
def test_a_question_that_makes_no_sense_is_refused(api, query):
    assert api.get(f"/doctor?{query}").status == 400


def test_there_is_one_examination_at_a_time(wide):
    async def both():
        first = asyncio.create_task(wide._client.get("/doctor"))
        while not wide.service.limits.examinations.used:
            await asyncio.sleep(0)
        second = await wide._client.get("/doctor")
        return (await first).status_code, second.status_code

    assert wide.wait_for(both()) == (200, 503)
    assert wide.service.limits.examinations.used == 0
    assert wide.get("/doctor?after=5").status == 200


def test_the_doctor_is_for_operators_of_the_whole_service(tmp_path):
    path = keys_file(
        tmp_path,
        entry("caller", "caller"),
        entry("operator", "operator"),
        entry("bound", "operator", tenants=["red"]),
    )
    with Api("--api-keys-file", str(path)) as api:
        statuses = {
            name: api.call("GET", "/doctor", None, authorization=bearer(name)).status
            for name in ("caller", "operator", "bound")
        }
        assert statuses == {"caller": 403, "operator": 200, "bound": 403}
        assert api.get("/doctor").status == 401
