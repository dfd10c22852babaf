"""Members of a deployment: its living actors and the addresses of their services."""

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import ray
from ray.exceptions import RayActorError

NAMESPACE = "select-service"
"""Ray namespace of all actors of this package, independent of the program's own."""


class SelectorAddress(NamedTuple):
    """Address of a selector.

    url: HTTP base URL
    sync_endpoint: ZMQ endpoint of replica synchronization
    node_id: Ray node
    """

    url: str
    sync_endpoint: str
    node_id: str


def list_members(name: str) -> list[str]:
    """Return the names of the actors of a deployment that live, restart or wait for a node."""
    named = ray.util.list_named_actors(all_namespaces=True)
    # Other deployments may have this name as a prefix.
    mine = re.compile(re.escape(name) + r"-\d+")
    return sorted(
        actor["name"]
        for actor in named
        if actor["namespace"] == NAMESPACE and mine.fullmatch(actor["name"])
    )


def fetch_addresses(names: Iterable[str], timeout_s: float) -> dict[str, SelectorAddress]:
    """Return the addresses by name of those actors that answer in time."""
    calls = {}
    for name in names:
        with suppress(ValueError):  # the actor has just ended
            calls[ray.get_actor(name, namespace=NAMESPACE).address.remote()] = name
    done, _ = (
        ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s) if calls else ([], [])
    )
    found = {}
    for call in done:
        with suppress(RayActorError):  # the actor restarts
            found[calls[call]] = ray.get(call)
    return found
