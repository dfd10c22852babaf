"""Tests that selectors as actors survive the end of an actor, a service or a node without loss."""

import socket

import httpx
import pytest
import ray

from select_service.ray import deploy, find, remove
from select_service.ray.deployment import NAME
from select_service.ray.deployment_members import fetch_addresses, list_members
from tests.builders.polling import eventually
from tests.ray.clusters import (
    FLAGS,
    are_joined,
    cluster,
    find_selectors,
    kill,
    kill_selector,
    port,
    register,
    reservations,
    service_pids,
    worker_ids,
)

pytestmark = [pytest.mark.process, pytest.mark.slow]
ENVIRONMENT = {"DYN_USE_KV_EVENTS": "false", "SELECT_SERVICE_NO_ASSUMED_INDEX": "true"}


def nodes_of_selectors() -> set[str]:
    """Return the nodes of the selectors that answer."""
    return {each.node_id for each in fetch_addresses(list_members(NAME), 5.0).values()}


@pytest.fixture(scope="module")
def nodes():
    with cluster((1, 2, 2, 2)) as started:
        yield started


@pytest.fixture
def fleet(nodes):
    """Yield first port and URLs of three selectors that have a worker and a reservation."""
    first = port()
    urls = deploy(3, port=first, flags=FLAGS, insecure=True, environment=ENVIRONMENT)
    eventually(lambda: are_joined(urls))
    for url in urls:
        register(url, 7)
    body = {"model_name": "m", "reservation_id": "r", "token_ids": list(range(64))}
    httpx.post(urls[0] + "/select_and_reserve", json=body).raise_for_status()
    eventually(lambda: [reservations(url) for url in urls] == [1, 1, 1])
    yield first, urls
    remove()
    eventually(lambda: not service_pids(first))


def is_whole(urls: list[str]) -> bool:
    known = all(worker_ids(url) == {7} and reservations(url) == 1 for url in urls)
    return known and are_joined(urls)


def test_a_killed_actor_comes_back_with_the_state_of_the_others(fleet):
    first, urls = fleet
    former = service_pids(first)
    kill_selector(1)
    eventually(lambda: service_pids(first).get(first + 2) not in (None, former[first + 2]))
    eventually(lambda: is_whole(urls))
    assert find() == urls


def test_a_service_that_ends_takes_its_actor_along_and_comes_back(fleet):
    first, urls = fleet
    former = service_pids(first)
    kill(former[first])
    eventually(lambda: service_pids(first).get(first) not in (None, former[first]))
    eventually(lambda: is_whole(urls))


def test_selectors_of_a_dead_node_continue_elsewhere(fleet, nodes):
    where = nodes_of_selectors()
    assert len(where) >= 2, "they are not spread"
    lost = next(node for node in nodes.list_all_nodes()[1:] if node.node_id in where)
    nodes.remove_node(lost, allow_graceful=False)
    eventually(lambda: len(nodes_of_selectors() - {lost.node_id}) == len(nodes_of_selectors()))
    now = find_selectors(3)
    eventually(lambda: is_whole(now))
    assert lost.node_id not in nodes_of_selectors()
    nodes.add_node(num_cpus=2)


def test_a_second_deploy_adds_only_missing_selectors(fleet):
    first, urls = fleet
    former = service_pids(first)
    more = deploy(4, port=first, flags=FLAGS, insecure=True, environment=ENVIRONMENT)
    assert more[:3] == urls
    assert former.items() <= service_pids(first).items()
    eventually(lambda: is_whole(more))


def test_a_port_in_use_is_left_to_its_owner(nodes):
    first = port()
    with socket.create_server(("", first)):
        (url,) = deploy(
            1, name="other", port=first, flags=FLAGS, insecure=True, environment=ENVIRONMENT
        )
        assert not url.endswith(f":{first}")
        assert worker_ids(url) == set()
    remove("other")


def test_deploy_reports_a_service_that_cannot_start(nodes):
    with pytest.raises(ray.exceptions.RayActorError, match="status 2"):
        deploy(1, name="wrong", port=port(), flags=("--policy", "none"), insecure=True)
    remove("wrong")


def test_no_selector_is_found_under_another_name(nodes):
    with pytest.raises(LookupError, match="nobody"):
        find("nobody")


@pytest.mark.parametrize("replicas", [0, 17])
def test_a_number_that_cannot_be_is_refused(nodes, replicas):
    with pytest.raises(ValueError, match="1 to 16"):
        deploy(replicas)
