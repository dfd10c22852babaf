"""Tests that the service and its OpenAPI document agree, by Schemathesis.

Nearly all generated requests are unusual and leave the fast path. Usual requests, which the fast
path answers, are listed explicitly.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    ignored_auth,
    positive_data_acceptance,
    unsupported_method,
)

from select_service.api.endpoints import migrations
from select_service.base.errors import HealthChecksOff
from select_service.fastpath import service_handler
from select_service.fastpath.fastpath_counts import ROUTES as FAST_PATH
from select_service.fastpath.pair_answers import PAIR_KERNEL
from tests.builders.counting_handler import Counting
from tests.builders.hypothesis_profiles import explores
from tests.builders.in_thread import InThread
from tests.builders.polling import PATIENCE_S
from tests.builders.routes import ROUTES

pytestmark = pytest.mark.process

EXAMPLES = 12
"""Number of examples of each kind of request to each endpoint."""

LEFT_OUT = [
    # 503 is a documented answer here; an assertion below excludes 500.
    not_a_server_error,
    # JSON Schema cannot express valid combinations of prompt fields; others get 400.
    positive_data_acceptance,
    # There is no authentication.
    ignored_auth,
    # Tested by tests/api/test_routing.py, on every path.
    unsupported_method,
]
FAST, ORDINARY, HEALTH = "fast", "ordinary", "health"
FLAGS = {
    FAST: (),
    ORDINARY: ("--no-fast-path",),
    HEALTH: ("--health-checks", "on", "--degradation", "auto"),
}


class Documented(NamedTuple):
    """Service with its document.

    fast: handlers of usual requests, if any
    """

    document: Any
    fast: list[Counting]


@contextmanager
def documented(way: str) -> Iterator[Documented]:
    """Yield a service with the fast path, without it, or with health."""
    fast = []

    def counting(*given):
        fast.append(Counting(*given))
        return fast[0]

    with (
        mock.patch.object(service_handler, "ServiceHandler", counting),
        mock.patch.object(migrations, "TIMEOUT_MS_MAX", 10),
        InThread("--threads", "1", *FLAGS[way]) as service,
    ):
        worker = {"worker_id": 1, "endpoint": "http://a", "block_size": 4}
        assert service.call("POST", "/workers", worker).status == 201
        url = f"http://127.0.0.1:{service.port}/openapi.json"
        yield Documented(schemathesis.openapi.from_url(url), fast)


@pytest.fixture(scope="module")
def service(request):
    """Yield one service for all generated requests, which change its state for later requests."""
    with documented(request.param) as service:
        yield service


def is_about_health(route):
    """Return whether health checks change the answer."""
    return HealthChecksOff in route.refusals or route.path in ("/workers", "/admission", "/metrics")


def is_tested(way, route):
    """Return whether the route is tested in this way.

    Routes outside the fast path are tested once, endless routes never.
    """
    name = (route.method, route.path)
    asked = {
        FAST: route.path != "/live",
        ORDINARY: name in FAST_ROUTES,
        HEALTH: is_about_health(route) and route.path != "/migrations/stream",
    }
    return asked[way]


FAST_ROUTES = {(method, path) for path, method, _ in FAST_PATH.values()}
CASES = [
    (way, route.method, route.path, mode)
    for way in FLAGS
    for route in ROUTES
    for mode in GenerationMode
    if is_tested(way, route)
    # Schemathesis would read its own document, and only routes with input can have wrong input.
    if route.path != "/openapi.json"
    and (mode == GenerationMode.POSITIVE or route.body or route.query or "worker_id" in route.path)
]


@pytest.mark.parametrize(
    ("service", "method", "path", "mode"), CASES, indirect=["service"], scope="module"
)
def test_answers_are_as_documented(service, method, path, mode):
    @given(case=service.document[path][method].as_strategy(generation_mode=mode))
    @explores(
        EXAMPLES, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
    )
    def made_up_requests(case):
        answer = case.call(timeout=PATIENCE_S)
        assert answer.status_code != 500
        case.validate_response(answer, excluded_checks=LEFT_OUT)

    made_up_requests()


PROMPT = {"token_ids": list(range(10))}
RESERVATION = "/reservations/{reservation_id}"
LIVES = [
    ("POST", "/select", None, {"selection_id": "turn-1", **PROMPT}),
    ("POST", "/select_and_reserve", None, PROMPT),
    ("POST", "/select_and_reserve", None, {"reservation_id": "a", **PROMPT}),
    ("POST", "/reservations", None, {"reservation_id": "b", "worker_id": 1, **PROMPT}),
    *(
        ("POST", f"{RESERVATION}/{verb}", name, None)
        for name in "ab"
        for verb in ("prefill_complete", "output_block", "renew")
    ),
    *(("DELETE", RESERVATION, name, None) for name in "ab"),
    ("POST", "/select_pair", None, PROMPT),
    ("POST", "/select_pair_and_reserve", None, {"reservation_id": "c", **PROMPT}),
    ("POST", f"{RESERVATION}/first_token", "c", None),
    ("DELETE", RESERVATION, "c", None),
]
"""Sequence of usual requests that succeed: method, path, id in the path, body."""


@pytest.mark.parametrize("way", FLAGS)
def test_answers_to_usual_requests_are_as_documented(way):
    assert {(method, path) for method, path, _, _ in LIVES} == FAST_ROUTES
    # The kernel usually loads on a thread, while the first pairs take the ordinary path.
    PAIR_KERNEL.load()
    with documented(way) as service:
        for method, path, name, body in LIVES:
            given = {} if name is None else {"path_parameters": {"reservation_id": name}}
            given |= {} if body is None else {"body": body, "media_type": "application/json"}
            case = service.document[path][method].Case(**given)
            answer = case.call(timeout=PATIENCE_S)
            assert answer.status_code == (201 if path == "/reservations" else 200)
            case.validate_response(answer, excluded_checks=LEFT_OUT)
        answered = sum(each.answered for each in service.fast)
    # The first pair of a scope takes the ordinary path, which creates the scope's kernels.
    assert answered == (0 if way == ORDINARY else len(LIVES) - 1)
