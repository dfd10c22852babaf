"""Which workers there are in Ray: sources for a follower of the catalog.

Actors and replicas describe themselves by a method `select_service_worker`, which returns a
`WorkerRegistration`, or the fields of one.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
import ray
from ray.exceptions import ActorDiedError, RayError
from ray.serve.handle import DeploymentHandle

from select_service.bodies.workers import WorkerRegistration
from select_service.ray.following import Seen

METHOD = "select_service_worker"
ANSWER_S_MAX = 5.0
"""How long a worker may take to describe itself; one that does not is not removed for that."""


class NamedActors:
    """Workers that are actors with names of one pattern."""

    def __init__(self, pattern: str, namespace: str) -> None:
        """pattern: a regular expression that matches the whole name."""
        self._pattern = re.compile(pattern)
        self._namespace = namespace

    def __call__(self) -> Seen:
        calls = []
        for actor in ray.util.list_named_actors(all_namespaces=True):
            if actor["namespace"] == self._namespace and self._pattern.fullmatch(actor["name"]):
                with suppress(ValueError):  # it has just ended
                    handle = ray.get_actor(actor["name"], namespace=self._namespace)
                    calls.append(getattr(handle, METHOD).remote())
        done, late = (
            ray.wait(calls, num_returns=len(calls), timeout=ANSWER_S_MAX) if calls else ([], [])
        )
        workers, is_complete = [], not late
        for call in done:
            try:
                workers.append(described(ray.get(call)))
            except ActorDiedError:
                pass
            except RayError:  # it may be alive
                is_complete = False
        return Seen(workers, is_complete)


class ServeReplicas:
    """Workers that are the running replicas of a deployment of Ray Serve."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    def __call__(self) -> Seen:
        answers = self._handle.broadcast(METHOD).results(
            timeout_s=ANSWER_S_MAX, return_exceptions=True
        )
        workers = [described(each) for each in answers if not isinstance(each, Exception)]
        return Seen(workers, is_complete=len(workers) == len(answers))


def described(facts: WorkerRegistration | Mapping[str, Any]) -> WorkerRegistration:
    """Raises msgspec.ValidationError when these are not fields of a registration."""
    return msgspec.convert(facts, WorkerRegistration, strict=False)
