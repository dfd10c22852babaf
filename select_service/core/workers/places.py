"""Where workers say they are: may this process connect to it?

What is said as an address is judged before anything changes.  A name is judged when it is looked
up, each time, by whoever connects.
"""

from collections.abc import Iterator
from functools import lru_cache

from indexer.endpoints import endpoint_error
from select_service.bodies.workers import WorkerFields
from select_service.core.workers.catalog import RANKS_PER_STEP
from select_service.destinations import Destinations
from select_service.errors import BadRequest, DestinationRefused
from select_service.spelling import shown
from select_service.urls import engine_url_error, metrics_url_error

KNOWN_MAX = 8192
"""Endpoints of which it is remembered whether they are refused."""


class Places:
    """asks_engines: are requests sent to the `endpoint` of workers?"""

    def __init__(
        self, destinations: Destinations | None = None, *, asks_engines: bool = False
    ) -> None:
        """destinations: None: nothing is connected to, so nothing is judged"""
        self._destinations = destinations
        self._asks_engines = asks_engines
        self._refusal_of = lru_cache(KNOWN_MAX)(
            _no_refusal if destinations is None else destinations.refusal_of_endpoint
        )

    def check(self, fields: WorkerFields) -> None:
        """Of a POST or a PATCH.  Raises BadRequest, DestinationRefused."""
        _check_metrics_endpoint(fields.metrics_endpoint)
        if self._destinations is None:
            return
        for name, url in _urls(fields, self._asks_engines):
            _refuse(name, url, self._destinations.refusal_of_url(url))
        for name, endpoint in _endpoints(fields):
            if endpoint_error(endpoint) is None:  # else that is a reason why it cannot be chosen
                _refuse(name, endpoint, self._refusal_of(endpoint))

    def looking(self, fields: WorkerFields) -> Iterator[None]:
        """What of `check` takes longest for many ranks, in steps: it is remembered."""
        for number, (_, endpoint) in enumerate(_endpoints(fields), 1):
            if endpoint_error(endpoint) is None:
                self._refusal_of(endpoint)
            if number % RANKS_PER_STEP == 0:
                yield


def _no_refusal(endpoint: str) -> str | None:
    return None


def _urls(fields: WorkerFields, asks_engines: bool) -> Iterator[tuple[str, str]]:
    if fields.metrics_endpoint:
        yield "metrics_endpoint", fields.metrics_endpoint
    if asks_engines and fields.endpoint and engine_url_error(fields.endpoint) is None:
        yield "endpoint", fields.endpoint


def _endpoints(fields: WorkerFields) -> Iterator[tuple[str, str]]:
    """Of ZMQ, the few before the many."""
    for name in ("kv_events_endpoint", "replay_endpoint"):
        if endpoint := getattr(fields, name):
            yield name, endpoint
    for name in ("kv_events_endpoints", "replay_endpoints"):
        for endpoint in (getattr(fields, name) or {}).values():
            yield name, endpoint


def _refuse(name: str, place: str, refusal: str | None) -> None:
    """Raises DestinationRefused if there is one."""
    if refusal is not None:
        raise DestinationRefused(f"{name} `{shown(place)}` is refused: {refusal}")


def _check_metrics_endpoint(url: str | None) -> None:
    """Raises BadRequest.  An empty one asks no engine."""
    error = metrics_url_error(url) if url else None
    if url and error is not None:
        raise BadRequest(
            f"invalid metrics_endpoint `{shown(url)}`: {error}; "
            "expected one like http://worker-1:8000/metrics"
        )
