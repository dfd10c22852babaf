"""The service and its OpenAPI document agree, by requests that Schemathesis makes up from it."""

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

from tests.api.routes import ROUTES
from tests.exploring import explores
from tests.golden.service_process import ServiceProcess
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

EXAMPLES = 12
"""Of each kind of request to each endpoint."""

LEFT_OUT = [
    # 503 is a documented answer here; that nothing answers 500 is asserted below.
    not_a_server_error,
    # JSON Schema cannot say which fields of a prompt go together; those are refused with 400.
    positive_data_acceptance,
    # There is no authentication.
    ignored_auth,
    # Tested by tests/api/test_routing.py, on every path.
    unsupported_method,
]


@pytest.fixture(scope="module")
def service():
    with ServiceProcess({"DYN_USE_KV_EVENTS": "false"}) as service:
        service.post("/workers", {"worker_id": 1, "endpoint": "http://a", "block_size": 4})
        yield service


@pytest.fixture(scope="module")
def document(service):
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{service.port}/openapi.json")


CASES = [
    (route.method, route.path, mode)
    for route in ROUTES
    for mode in GenerationMode
    # Schemathesis would read its own document, and only what takes something can be wrong.
    if route.path != "/openapi.json"
    and (mode == GenerationMode.POSITIVE or route.body or route.query or "worker_id" in route.path)
]


@pytest.mark.parametrize(("method", "path", "mode"), CASES)
def test_answers_are_as_documented(service, document, method, path, mode):
    @given(case=document[path][method].as_strategy(generation_mode=mode))
    @explores(
        EXAMPLES,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def made_up_requests(case):
        answer = case.call(timeout=PATIENCE_S)
        assert answer.status_code != 500
        case.validate_response(answer, excluded_checks=LEFT_OUT)

    made_up_requests()
