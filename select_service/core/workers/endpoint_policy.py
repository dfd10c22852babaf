"""Egress policy of worker endpoints: whether this process may connect to them.

Literal addresses are checked before any change. Host names are checked at each lookup by the
connecting component.
"""

from collections.abc import Iterator
from functools import lru_cache

from indexer.zmq_endpoints import endpoint_error
from select_service.base.errors import BadRequest, DestinationRefused
from select_service.base.suggestions import printable_name
from select_service.core.workers.worker_catalog import RANKS_PER_STEP
from select_service.net.egress_policy import EgressPolicy
from select_service.net.urls import engine_url_error, metrics_url_error
from select_service.schemas.workers import WorkerFields

CACHED_ENDPOINTS_MAX = 8192
"""Size of the LRU cache of checked endpoints."""


class EndpointPolicy:
    """Check of worker endpoints.

    asks_engines: whether requests are sent to the `endpoint` of workers
    """

    def __init__(
        self, egress_policy: EgressPolicy | None = None, *, probes_engines: bool = False
    ) -> None:
        """Create the check; without destinations nothing is connected to and nothing is checked."""
        self._destinations = egress_policy
        self._asks_engines = probes_engines
        self._refusal_of = lru_cache(CACHED_ENDPOINTS_MAX)(
            _no_refusal if egress_policy is None else egress_policy.endpoint_refusal
        )

    def check_endpoints(self, fields: WorkerFields) -> None:
        """Check a POST or PATCH. Raises BadRequest, DestinationRefused."""
        _check_metrics_endpoint(fields.metrics_endpoint)
        if self._destinations is None:
            return
        for name, url in _http_urls(fields, self._asks_engines):
            _raise_if_refused(name, url, self._destinations.url_refusal(url))
        for name, endpoint in _zmq_endpoints(fields):
            if endpoint_error(endpoint) is None:  # otherwise reported as a shortcoming
                _raise_if_refused(name, endpoint, self._refusal_of(endpoint))

    def check_endpoints_in_steps(self, fields: WorkerFields) -> Iterator[None]:
        """Check the endpoints of many ranks in steps; the results are cached for
        `check_endpoints`.
        """
        for number, (_, endpoint) in enumerate(_zmq_endpoints(fields), 1):
            if endpoint_error(endpoint) is None:
                self._refusal_of(endpoint)
            if number % RANKS_PER_STEP == 0:
                yield


def _no_refusal(endpoint: str) -> str | None:
    return None


def _http_urls(fields: WorkerFields, asks_engines: bool) -> Iterator[tuple[str, str]]:
    if fields.metrics_endpoint:
        yield "metrics_endpoint", fields.metrics_endpoint
    if asks_engines and fields.endpoint and engine_url_error(fields.endpoint) is None:
        yield "endpoint", fields.endpoint


def _zmq_endpoints(fields: WorkerFields) -> Iterator[tuple[str, str]]:
    """Yield the ZMQ endpoints, single endpoints before tables."""
    for name in ("kv_events_endpoint", "replay_endpoint"):
        if endpoint := getattr(fields, name):
            yield name, endpoint
    for name in ("kv_events_endpoints", "replay_endpoints"):
        for endpoint in (getattr(fields, name) or {}).values():
            yield name, endpoint


def _raise_if_refused(name: str, place: str, refusal: str | None) -> None:
    """Raise DestinationRefused if there is a refusal."""
    if refusal is not None:
        raise DestinationRefused(f"{name} `{printable_name(place)}` is refused: {refusal}")


def _check_metrics_endpoint(url: str | None) -> None:
    """Raise BadRequest for an invalid URL; an empty URL disables scraping."""
    error = metrics_url_error(url) if url else None
    if url and error is not None:
        raise BadRequest(
            f"invalid metrics_endpoint `{printable_name(url)}`: {error}; "
            "expected one like http://worker-1:8000/metrics"
        )
