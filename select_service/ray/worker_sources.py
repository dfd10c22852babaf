"""Sources of workers in Ray, for `Follower`.

Actors and replicas describe themselves by a method `select_service_worker`, which returns a
`WorkerRegistration` or its fields.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
import ray
from ray.exceptions import ActorDiedError, RayError
from ray.serve.handle import DeploymentHandle

from select_service.ray.catalog_reconciler import Seen
from select_service.schemas.workers import WorkerRegistration

METHOD = "select_service_worker"
ANSWER_S_MAX = 5.0
"""Time limit of a description, in seconds; a worker without an answer is not removed."""


class NamedActors:
    """Source of workers that are actors with matching names."""

    def __init__(self, pattern: str, namespace: str) -> None:
        """pattern: regular expression for the whole name"""
        self._pattern = re.compile(pattern)
        self._namespace = namespace

    def __call__(self) -> Seen:
        calls = []
        for actor in ray.util.list_named_actors(all_namespaces=True):
            if actor["namespace"] == self._namespace and self._pattern.fullmatch(actor["name"]):
                with suppress(ValueError):  # the actor has just ended
                    handle = ray.get_actor(actor["name"], namespace=self._namespace)
                    calls.append(getattr(handle, METHOD).remote())
        done, late = (
            ray.wait(calls, num_returns=len(calls), timeout=ANSWER_S_MAX) if calls else ([], [])
        )
        workers, is_complete = [], not late
        for call in done:
            try:
                workers.append(make_registration(ray.get(call)))
            # Dead for certain, so the worker may be removed.
            except ActorDiedError:
                pass
            except RayError:  # the actor may be alive
                is_complete = False
        return Seen(workers, is_complete)


class ServeReplicas:
    """Source of workers that are the running replicas of a Ray Serve deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    def __call__(self) -> Seen:
        answers = self._handle.broadcast(METHOD).results(
            timeout_s=ANSWER_S_MAX, return_exceptions=True
        )
        workers = [make_registration(each) for each in answers if not isinstance(each, Exception)]
        return Seen(workers, is_complete=len(workers) == len(answers))


def make_registration(facts: WorkerRegistration | Mapping[str, Any]) -> WorkerRegistration:
    """Return a registration.  Raises msgspec.ValidationError for unknown or wrong fields."""
    return msgspec.convert(facts, WorkerRegistration, strict=False)
