"""Who is there: the living actors of one name, and where their services are."""

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import ray
from ray.exceptions import RayActorError

NAMESPACE = "select-service"
"""The namespace of Ray in which all actors of this package live, whatever the program's own is."""


class Address(NamedTuple):
    """Where one selector is: HTTP, the ZMQ endpoint on which it tells its bookings, the node."""

    url: str
    sync_endpoint: str
    node_id: str


def members(name: str) -> list[str]:
    """Names of the actors of a deployment that live, restart or wait for a node."""
    named = ray.util.list_named_actors(all_namespaces=True)
    mine = re.compile(re.escape(name) + r"-\d+")
    return sorted(
        actor["name"]
        for actor in named
        if actor["namespace"] == NAMESPACE and mine.fullmatch(actor["name"])
    )


def addresses(names: Iterable[str], timeout_s: float) -> dict[str, Address]:
    """By name, where those are that say so in time."""
    calls = {}
    for name in names:
        with suppress(ValueError):  # it has just ended
            calls[ray.get_actor(name, namespace=NAMESPACE).address.remote()] = name
    done, _ = (
        ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s) if calls else ([], [])
    )
    found = {}
    for call in done:
        with suppress(RayActorError):  # it restarts
            found[calls[call]] = ray.get(call)
    return found
