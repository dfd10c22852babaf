"""Tests that the catalogs of all selectors follow the existing actors."""

import httpx
import pytest
import ray

from select_service.ray import Follower, NamedActors, deploy, find
from tests.builders.polling import eventually
from tests.ray.clusters import FLAGS, cluster, kill_selector, port, service_pids, worker_ids

pytestmark = [pytest.mark.process, pytest.mark.slow]
NAMESPACE = "fleet"


@ray.remote(num_cpus=0)
class Engine:
    def __init__(self, number):
        self.number = number

    def select_service_worker(self):
        return {
            "worker_id": self.number,
            "model_name": "m",
            "endpoint": f"http://engine-{self.number}:8000",
            "block_size": 16,
        }


def start(number):
    return Engine.options(name=f"engine-{number}", namespace=NAMESPACE).remote(number)


def all_know(urls, ids):
    return all(worker_ids(url) == ids for url in urls)


def test_actors_are_workers_as_long_as_they_live():
    with cluster((4,)):
        first = port()
        urls = deploy(
            2,
            port=first,
            flags=FLAGS,
            insecure=True,
            environment={"DYN_USE_KV_EVENTS": "false", "SELECT_SERVICE_NO_ASSUMED_INDEX": "true"},
        )
        httpx.post(
            urls[0] + "/workers", json={"worker_id": 99, "endpoint": "http://mine", "block_size": 8}
        ).raise_for_status()
        engines = [start(number) for number in (1, 2, 3)]
        follower = Follower(NamedActors(r"engine-\d+", NAMESPACE), find, interval_s=0.5)
        eventually(lambda: all_know(urls[1:], {1, 2, 3}) and all_know(urls[:1], {1, 2, 3, 99}))
        ray.kill(engines[1])
        eventually(lambda: all_know(urls[1:], {1, 3}) and all_know(urls[:1], {1, 3, 99}))
        former = service_pids(first)[first + 2]
        kill_selector(1)
        eventually(lambda: service_pids(first).get(first + 2, former) != former)
        engines.append(start(4))
        eventually(lambda: all_know(urls, {1, 3, 4, 99}))
        follower.close()
        eventually(lambda: all_know(urls, {99}))
