"""Tests of canary targets, which follow the catalog."""

import pytest

from select_service.adapters.health.canary_targets import CanaryTarget, CanaryTargets
from select_service.adapters.health.request_formats import WORKERS_MAX, RequestFormats
from select_service.core.identity import Rank
from select_service.net.urls import engine_url_error
from tests.builders import a_patch, a_reservation, a_selector, a_worker


def targets_of(*workers):
    selector = a_selector()
    for worker in workers:
        selector.register_worker(worker)
    return selector, CanaryTargets(
        selector.fleet, lambda model: "sglang" if model == "s" else "openai"
    )


def test_canaries_go_to_the_endpoint_of_the_worker():
    worker = a_worker(1, endpoint="http://w1:8000")
    _, targets = targets_of(worker)
    assert targets.find_target(Rank(1, 0)) == CanaryTarget(worker, "http://w1:8000", "m", "openai")
    assert targets.find_target(Rank(1, 1)) is None
    assert targets.find_target(Rank(2, 0)) is None


def test_a_change_of_the_worker_is_another_registration():
    selector, targets = targets_of(a_worker(1))
    before = targets.find_target(Rank(1, 0)).registration
    assert targets.find_target(Rank(1, 0)).registration is before
    selector.patch_worker(1, a_patch(endpoint="http://w2:8000"))
    assert targets.find_target(Rank(1, 0)).registration is not before
    selector.delete_worker(1, 2.0)
    assert targets.find_target(Rank(1, 0)) is None


@pytest.mark.parametrize(
    "endpoint",
    ["ray://actor", "http://", "http://w1:0", "http://w1:8000?x=1", "http://u:p@w1", "http://w 1"],
)
def test_endpoints_without_http_get_no_canary(endpoint):
    _, targets = targets_of(a_worker(1, endpoint=endpoint))
    assert targets.find_target(Rank(1, 0)) is None
    assert engine_url_error(endpoint) is not None


def test_the_routes_follow_the_model():
    _, targets = targets_of(a_worker(1, model_name="s"))
    assert targets.find_target(Rank(1, 0)).api == "sglang"


def test_prompt_tokens_of_the_rank_alone_are_counted():
    selector, targets = targets_of(a_worker(1), a_worker(2))
    request = a_reservation("r", worker_id=1, tokens=40)
    selector.reserve(request, 0.0)
    assert targets.prefill_tokens(Rank(1, 0)) == 40
    assert targets.prefill_tokens(Rank(2, 0)) == 0
    assert targets.prefill_tokens(Rank(3, 0)) == 0


def test_request_forms_are_bounded_and_the_latest_stay():
    forms = RequestFormats()
    targets = [
        CanaryTarget(a_worker(number), "http://w:8000", "m", "openai")
        for number in range(WORKERS_MAX + 1)
    ]
    for target in targets[:-1]:
        forms.record_format(target, "plain")
    forms.record_format(targets[0], "plain")
    forms.record_format(targets[-1], "plain")
    assert forms.accepted_format(targets[0]) == forms.accepted_format(targets[-1]) == "plain"
    assert forms.accepted_format(targets[1]) is None
    assert forms.accepted_format(targets[0]._replace(registration=a_worker(0))) is None
