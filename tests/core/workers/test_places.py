"""Test that endpoints checked in steps are not checked again."""

from select_service.core.workers import endpoint_policy as places_module
from select_service.core.workers.endpoint_policy import EndpointPolicy
from select_service.net.egress_policy import EgressPolicy
from tests.builders import a_worker


def test_endpoints_checked_in_steps_are_remembered(monkeypatch):
    asked = []

    def refusal_of_endpoint(self, endpoint):
        asked.append(endpoint)

    monkeypatch.setattr(EgressPolicy, "endpoint_refusal", refusal_of_endpoint)
    endpoints = {n: f"tcp://10.0.{n // 256}.{n % 256}:5557" for n in range(1024)}
    worker = a_worker(1, data_parallel_size=1024, kv_events_endpoints=endpoints)
    places = EndpointPolicy(EgressPolicy())
    steps = len(list(places.check_endpoints_in_steps(worker)))
    assert steps == 1024 // places_module.RANKS_PER_STEP
    assert asked == list(endpoints.values())
    places.check_endpoints(worker)
    assert len(asked) == 1024
