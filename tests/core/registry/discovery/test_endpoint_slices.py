"""Tests of the engines read from an EndpointSlice."""

import msgspec
import pytest

from select_service.core.registry.discovery.endpoint_slices import (
    EndpointSlice,
    EndpointSliceTemplate,
    candidates_of_slice,
    distinct_engines,
)
from select_service.core.registry.discovery.worker_records import derive_worker_id
from tests.builders.slice_documents import a_slice, an_endpoint

PLAIN = EndpointSliceTemplate(None, None, {})


def read(document):
    return msgspec.json.decode(msgspec.json.encode(document), type=EndpointSlice)


def find_candidates(*endpoints, template=PLAIN, **changes):
    return candidates_of_slice(read(a_slice("a", *endpoints, **changes)), template)


def endpoints_of(*endpoints, **changes):
    return [each.endpoint for each in find_candidates(*endpoints, **changes)]


@pytest.mark.parametrize(
    ("conditions", "serves"),
    [
        ({"ready": True}, True),
        ({"ready": None}, True),
        ({}, True),
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": False}, False),
        ({"ready": True, "serving": False}, False),  # addresses published before the pod is ready
        ({"ready": True, "terminating": True}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
    ],
)
def test_only_ready_endpoints_serve(conditions, serves):
    document = a_slice("a", {"addresses": ["10.0.0.1"], "conditions": conditions})
    assert bool(candidates_of_slice(read(document), PLAIN)) is serves


def test_absent_fields_are_not_needed():
    assert candidates_of_slice(read({"metadata": {"name": "a"}, "endpoints": None}), PLAIN) == ()
    bare = {"endpoints": [{"addresses": ["10.0.0.1"]}, {}], "ports": [{"port": 8000}]}
    (candidate,) = candidates_of_slice(read(bare), PLAIN)
    assert candidate.endpoint == "http://10.0.0.1:8000"


def test_a_pod_is_the_same_worker_at_another_address():
    (before,) = find_candidates(an_endpoint("10.0.0.1", pod="vllm-0", uid="a"))
    (after,) = find_candidates(an_endpoint("10.0.0.2", pod="vllm-0", uid="b"))
    assert before.worker_id == after.worker_id == derive_worker_id("prod/vllm-0")
    assert before.key != after.key
    assert before.version != after.version


def test_the_template_has_the_names_of_the_endpoint():
    worker = {"topology_domains": {"host": "{node}"}, "stable_routing_id": "{namespace}/{name}"}
    template = EndpointSliceTemplate(
        None, None, worker | {"kv_events_endpoint": "tcp://{host}:5557"}
    )
    (candidate,) = find_candidates(an_endpoint("fd00::1", pod="vllm-0"), template=template)
    assert candidate.fields == {
        "endpoint": "http://[fd00::1]:8000",
        "worker_id": derive_worker_id("prod/vllm-0"),
        "topology_domains": {"host": "node-1"},
        "stable_routing_id": "prod/vllm-0",
        "kv_events_endpoint": "tcp://[fd00::1]:5557",
    }


@pytest.mark.parametrize(
    ("ports", "template", "port"),
    [
        ((("http", 8000), ("metrics", 9000)), PLAIN, 8000),
        ((("api", 8100),), PLAIN, 8100),
        ((("", 8100),), PLAIN, 8100),
        ((("http", 8000), ("api", 8100)), EndpointSliceTemplate(None, "api", {}), 8100),
        ((), EndpointSliceTemplate(7000, None, {}), 7000),
        ((("http", 8000),), EndpointSliceTemplate(7000, None, {}), 7000),
    ],
)
def test_the_port(ports, template, port):
    (candidate,) = find_candidates(an_endpoint("10.0.0.1"), ports=ports, template=template)
    assert candidate.endpoint == f"http://10.0.0.1:{port}"


@pytest.mark.parametrize(
    ("ports", "template"),
    [
        ((), PLAIN),
        ((("a", 1), ("b", 2)), PLAIN),
        ((("http", 8000),), EndpointSliceTemplate(None, "api", {})),
    ],
)
def test_an_undeclared_port_is_an_error(ports, template):
    with pytest.raises(ValueError, match="`port` or `port_name`"):
        find_candidates(an_endpoint("10.0.0.1"), ports=ports, template=template)
    assert (
        find_candidates(an_endpoint("10.0.0.1", ready=False), ports=ports, template=template) == ()
    )


def test_an_engine_in_several_slices_counts_once():
    six = find_candidates(
        an_endpoint("fd00::1", pod="a"), an_endpoint("fd00::2", pod="b"), kind="IPv6"
    )
    four = find_candidates(an_endpoint("10.0.0.1", pod="a"))
    moving = find_candidates(an_endpoint("10.0.0.1", pod="a"), an_endpoint("10.0.0.3"))
    chosen = [each.endpoint for each in distinct_engines({"p/6": six, "p/4": four, "p/x": moving})]
    assert chosen == ["http://10.0.0.1:8000", "http://10.0.0.3:8000", "http://[fd00::2]:8000"]
