"""Tests of ready pods as candidates."""

import json
import re

import msgspec
import pytest

from select_service.core.registry.discovery.engine_candidates import complete_record
from select_service.core.registry.discovery.kubernetes_pods import (
    KubernetesPod,
    KubernetesPodTemplate,
    candidate_of_pod,
    is_serving,
)
from select_service.core.registry.discovery.worker_records import derive_worker_id
from tests.builders.pod_documents import a_pod

TEMPLATE = KubernetesPodTemplate(None, {"kv_events_endpoint": "tcp://{host}:5557"})


def pod(**changes):
    return msgspec.convert(a_pod("vllm-0", **changes), KubernetesPod)


def test_a_pod_that_is_ready_serves():
    assert is_serving(pod())


@pytest.mark.parametrize(
    "changes", [{"ready": False}, {"phase": "Pending"}, {"ip": None}, {"deleted": True}]
)
def test_one_that_is_not_or_that_leaves_does_not(changes):
    assert not is_serving(pod(**changes))


def test_the_template_is_filled_with_the_pods_fields():
    template = KubernetesPodTemplate(
        None, TEMPLATE.worker | {"topology_domains": {"host": "{node}"}}
    )
    found = candidate_of_pod(pod(ip="fd00::7"), template)
    record = complete_record(found, {"block_size": 16})
    assert record.worker_id == derive_worker_id("prod/vllm-0")
    assert record.endpoint == "http://[fd00::7]:8000"
    assert record.kv_events_endpoint == "tcp://[fd00::7]:5557"
    assert record.topology_domains == {"host": "node-1"}


def test_a_restarted_pod_is_the_same_worker_and_another_engine():
    first, second = (candidate_of_pod(pod(uid=uid), TEMPLATE) for uid in "ab")
    assert first.worker_id == second.worker_id
    assert first.key != second.key
    assert candidate_of_pod(pod(restarts=1), TEMPLATE).key != candidate_of_pod(pod(), TEMPLATE).key


@pytest.mark.parametrize(
    ("changes", "given", "port"),
    [
        ({"ports": [("http", 1), ("metrics", 2)]}, None, 1),
        ({"ports": [(None, 7)]}, None, 7),
        ({"ports": [(None, 7)]}, 9, 9),
        ({"annotations": {"select-service/port": "5"}}, 9, 5),
    ],
)
def test_the_port_is_the_most_particular_one(changes, given, port):
    assert candidate_of_pod(pod(**changes), KubernetesPodTemplate(given, {})).endpoint.endswith(
        f":{port}"
    )


def test_an_annotation_replaces_fields_of_the_template():
    worker = {"model_name": "m-{namespace}", "kv_events_endpoint": "tcp://{host}:6000"}
    found = candidate_of_pod(
        pod(annotations={"select-service/worker": json.dumps(worker)}), TEMPLATE
    )
    assert found.fields["model_name"] == "m-prod"
    assert found.fields["kv_events_endpoint"] == "tcp://10.0.0.1:6000"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"ports": [(None, 1), (None, 2)]}, "the pod has 2 ports and none called `http`"),
        ({"ports": []}, "the pod has 0 ports and none"),
        ({"annotations": {"select-service/port": "x"}}, "annotation select-service/port: `x`"),
        ({"annotations": {"select-service/worker": "{"}}, "annotation select-service/worker: Inp"),
        (
            {"annotations": {"select-service/worker": "3"}},
            "annotation select-service/worker: expected a",
        ),
        (
            {"annotations": {"select-service/worker": '{"block": 3}'}},
            "annotation select-service/worker: unknown field `block`",
        ),
        (
            {"annotations": {"select-service/worker": '{"endpoint": "{ip}"}'}},
            "annotation select-service/worker: unknown name `{ip}`",
        ),
    ],
)
def test_faults_of_a_pod_are_reported(changes, fault):
    with pytest.raises(ValueError, match=f"^{re.escape(fault)}"):
        candidate_of_pod(pod(**changes), TEMPLATE)


@pytest.mark.parametrize("worker", ["{", "[" * 5000, '{"taints":' + "[" * 5000 + "]" * 5000 + "}"])
def test_an_annotation_without_json_is_reported(worker):
    with pytest.raises(ValueError, match="annotation select-service/worker: "):
        candidate_of_pod(pod(annotations={"select-service/worker": worker}), TEMPLATE)
