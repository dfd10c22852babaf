"""Tests of Ray's own KVAwareRouter and KVTokenTracker, unchanged, with these selectors."""

from collections import Counter

import httpx
import pytest
from ray import serve

from select_service.ray import deploy
from tests.builders.polling import eventually
from tests.ray.clusters import FLAGS, cluster, get, port, reservations, worker_ids
from tests.ray.kv_aware import HOOK, LLMRouter, LLMServer

pytestmark = [pytest.mark.process, pytest.mark.slow]
REPLICAS = 3


@pytest.fixture(scope="module")
def urls():
    with cluster((32,), runtime_env={"worker_process_setup_hook": HOOK}):
        yield deploy(2, port=port(), flags=FLAGS, insecure=True)
        serve.shutdown()


@pytest.fixture(params=[1, 2], ids=["one ingress", "two ingresses"])
def ingress(urls, request):
    former = len(worker_ids(urls[0]))  # workers of an ingress that has ended stay
    app = LLMRouter.options(num_replicas=request.param).bind(
        LLMServer.options(num_replicas=REPLICAS).bind()
    )
    handle = serve.run(app, route_prefix=None)
    eventually(lambda: {len(worker_ids(url)) for url in urls} == {former + REPLICAS})
    yield handle
    serve.delete("default")


def prompt(number):
    return [number] * 320


def reservation_counts(urls):
    return [reservations(url) for url in urls]


def rows(urls):
    return [row for url in urls for row in get(url, "/reservations")["reservations"]]


def test_a_prompt_of_any_caller_goes_where_it_is_cached(ingress, urls):
    first = ingress.remote(prompt(1), 0.1, 0).result()
    eventually(lambda: most_cached(urls, prompt(1)) == 20)
    assert {ingress.remote(prompt(1), 0.1, 0).result() for _ in range(6)} == {first}
    eventually(lambda: reservation_counts(urls) == [0] * len(urls))


def test_requests_that_come_together_are_booked_once_each_and_spread(ingress, urls):
    answers = [ingress.remote(prompt(100 + i), 6.0, 2) for i in range(12)]
    eventually(lambda: reservation_counts(urls) == [12] * len(urls))
    eventually(lambda: {row["state"] for row in rows(urls)} == {"decode"})
    eventually(lambda: max(row["output_blocks"] for row in rows(urls)) == 2)
    per_replica = Counter(answer.result() for answer in answers)
    assert len(per_replica) == REPLICAS
    assert max(per_replica.values()) <= 6
    eventually(lambda: reservation_counts(urls) == [0] * len(urls))


def most_cached(urls, tokens):
    """Return the cached blocks of a prompt on the best rank, as all selectors agree."""
    return min(max(row["device_blocks"] for row in scores(url, tokens)) for url in urls)


def scores(url, tokens):
    return httpx.post(url + "/overlap_scores", json={"token_ids": tokens}).json()["workers"]
