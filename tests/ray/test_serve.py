"""Tests that Serve's requests go to the chosen ranks, and that no booking stays afterwards."""

import asyncio
from collections import Counter

import pytest
from ray import serve

from select_service.ray import deploy, remove
from tests.builders.polling import eventually
from tests.ray.clusters import FLAGS, cluster, get, kill, port, reservations, worker_ids
from tests.ray.engines import Engine, Front

pytestmark = [pytest.mark.process, pytest.mark.slow]
REPLICAS = 3


@pytest.fixture(scope="module")
def urls():
    environment = {"DYN_USE_KV_EVENTS": "false", "SELECT_SERVICE_NO_ASSUMED_INDEX": "true"}
    with cluster((32,)):
        yield deploy(2, port=port(), flags=FLAGS, insecure=True, environment=environment)
        serve.shutdown()


@pytest.fixture
def engine(urls, request):
    """Yield a handle of three engines that all selectors have; a parameter sets engine options."""
    options = getattr(request, "param", {})
    handle = serve.run(Engine.options(num_replicas=REPLICAS, **options).bind(), route_prefix=None)
    eventually(lambda: [len(worker_ids(url)) for url in urls] == [REPLICAS] * len(urls))
    yield handle
    serve.delete("default")
    eventually(lambda: [worker_ids(url) for url in urls] == [set()] * len(urls))


ONE_AT_A_TIME = {"max_ongoing_requests": 1}


def prompt(number):
    return [number] * 320


def ask(handle, n, hold_s):
    return [handle.generate.remote(token_ids=prompt(i), hold_s=hold_s) for i in range(n)]


def check_no_reservations(urls):
    eventually(lambda: [reservations(url) for url in urls] == [0] * len(urls))


def test_requests_that_come_together_do_not_herd(engine, urls):
    answers = [response.result() for response in ask(engine, 30, hold_s=2.0)]
    assert all(ran.booked is not None for ran in answers)
    per_replica = Counter(ran.pid for ran in answers)
    assert len(per_replica) == REPLICAS
    assert max(per_replica.values()) <= 15
    check_no_reservations(urls)


def test_first_token_and_output_are_reported_while_a_request_runs(engine, urls):
    (response,) = ask(engine, 1, hold_s=5.0)

    def rows():
        return [row for url in urls for row in get(url, "/reservations")["reservations"]]

    eventually(lambda: [row["state"] for row in rows()] == ["decode"] * len(urls))
    eventually(lambda: max(row["output_blocks"] for row in rows()) == 1)
    response.result()
    check_no_reservations(urls)


@pytest.mark.parametrize("engine", [ONE_AT_A_TIME], indirect=True)
def test_a_request_for_a_full_replica_moves_with_its_booking(engine, urls):
    answers = [response.result() for response in ask(engine, 9, hold_s=0.5)]
    assert len({ran.pid for ran in answers}) == REPLICAS
    assert all(ran.booked is not None for ran in answers)
    check_no_reservations(urls)


@pytest.mark.parametrize("engine", [ONE_AT_A_TIME], indirect=True)
def test_a_request_that_is_cancelled_before_it_was_sent_leaves_no_booking(engine, urls):
    held = ask(engine, REPLICAS, hold_s=4.0)
    eventually(lambda: reservations(urls[0]) == REPLICAS)
    waiting = ask(engine, 5, hold_s=0.0)
    for response in waiting:
        response.cancel()
    for response in held:
        response.result()
    check_no_reservations(urls)


def test_requests_of_a_dead_replica_are_freed_and_the_worker_leaves(engine, urls):
    before = worker_ids(urls[0])
    held = ask(engine, 12, hold_s=5.0)
    eventually(lambda: reservations(urls[0]) == 12)
    kill(engine.pid.remote().result())
    outcomes = []
    for response in held:
        try:
            outcomes.append(response.result().pid)
        except Exception:
            outcomes.append(None)
    assert 1 <= outcomes.count(None) <= 6
    check_no_reservations(urls)
    eventually(lambda: len(before - worker_ids(urls[0])) == 1)
    eventually(lambda: [len(worker_ids(url)) for url in urls] == [REPLICAS] * len(urls))


def test_calls_that_share_the_id_of_a_request_are_booked_each_for_itself(urls):
    front = serve.run(
        Front.bind(Engine.options(num_replicas=REPLICAS).bind()), name="nested", route_prefix=None
    )
    eventually(lambda: len(worker_ids(urls[0])) == REPLICAS)
    response = front.remote(5, 3.0)
    eventually(lambda: reservations(urls[0]) == 5)
    booked = [ran.booked["reservation_id"] for ran in response.result()]
    assert len(set(booked)) == 5
    check_no_reservations(urls)
    serve.delete("nested")


def test_serve_chooses_by_itself_when_no_selector_answers(urls):
    handle = serve.run(
        Engine.options(num_replicas=REPLICAS).bind(), name="alone", route_prefix=None
    )
    assert handle.generate.remote(token_ids=prompt(0)).result().booked is not None
    remove()
    eventually(lambda: [reservations(url) for url in urls] == [None] * len(urls))
    answers = [response.result() for response in ask(handle, 12, hold_s=0.5)]
    assert [ran.booked for ran in answers] == [None] * 12
    assert len({ran.pid for ran in answers}) > 1
    serve.delete("alone")


def test_a_request_without_a_prompt_is_sent_all_the_same(urls):
    handle = serve.run(Engine.options(num_replicas=1).bind(), name="plain", route_prefix=None)
    assert asyncio.run(_pid(handle)) > 0
    serve.delete("plain")


async def _pid(handle):
    return await handle.pid.remote()
