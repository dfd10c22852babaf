"""Tests of a workers file: each error names the fault and the record."""

import re

import msgspec
import pytest

from select_service.core.registry.discovery.worker_records import derive_worker_id
from select_service.core.registry.discovery.workers_document import read_workers_document
from select_service.core.workers.worker_catalog import RegisteredWorker


def read(text):
    return read_workers_document(msgspec.yaml.decode(text))


def test_defaults_fill_absent_fields():
    workers = read(
        """
        defaults: {model_name: qwen, block_size: 16}
        workers:
          - {worker_id: 1, endpoint: "http://a:8000"}
          - {worker_id: 2, endpoint: "http://b:8000", block_size: 32}
        """
    )
    assert [(w.model_name, w.block_size) for w in workers.values()] == [("qwen", 16), ("qwen", 32)]


def test_a_list_alone_will_do_and_so_will_no_workers():
    assert list(read("[{worker_id: 5}]")) == [5]
    assert read("workers: []") == {}


def test_ranks_may_be_numbers_or_texts():
    (worker,) = read(
        '[{worker_id: 1, kv_events_endpoints: {0: "tcp://a:1", "1": "tcp://a:2"}}]'
    ).values()
    assert worker.kv_events_endpoints == {0: "tcp://a:1", 1: "tcp://a:2"}


def test_control_endpoints_of_ranks_have_the_form_of_a_registration():
    (worker,) = read(
        "[{worker_id: 1, router_hint_worker_type: agg, "
        'router_hint_source_control_endpoints: {0: "tcp://a:1", "1": "tcp://a:2"}}]'
    ).values()
    kept = RegisteredWorker(worker)
    assert kept.takes_hints
    assert [kept.control_endpoint(rank) for rank in range(3)] == ["tcp://a:1", "tcp://a:2", None]


def test_a_worker_without_an_id_has_one_of_its_endpoint():
    one = read('[{endpoint: "http://a:8000"}]')
    assert list(one) == [derive_worker_id("http://a:8000")] == [4268214893979185]
    assert derive_worker_id("http://b:8000") != derive_worker_id("http://a:8000") < 2**53


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "the file is empty: write `workers: []` for no workers"),
        ("3", "the document: expected an object, got 3"),
        ("worker: []", "unknown field `worker`: did you mean `workers`?"),
        ("[{worker_id: 3, blocksize: 4}]", "worker 3: unknown field `blocksize`: did you mean"),
        (
            "[{worker_id: 3}, {block_size: 4}]",
            "record 2: `worker_id` is missing: give it, or",
        ),
        (
            "[{worker_id: 3, block_size: x}]",
            'worker 3: `block_size`: expected a whole number, got "x"',
        ),
        ("[{worker_id: -3}]", "worker -3: `worker_id`: expected a whole number of at least 0"),
        ("[{worker_id: .nan}]", "worker nan: `worker_id`: a number is not finite"),
        ("[{worker_id: 3, block_size: .inf}]", "worker 3: `block_size`: a number is not finite"),
        ("[{worker_id: 3, kv_layout: {x: -.inf}}]", "worker 3: `kv_layout`: a number is not"),
        ("[{worker_id: 3}, {worker_id: 3}]", "two workers have the worker_id 3"),
        ("[{worker_id: 3, tenant_id: a, routing_group: b}]", "worker 3: tenant_id `a` and routing"),
        (
            "[{worker_id: 3, router_hint_source_control_endpoints: {x: a}}]",
            "worker 3: a key of `router_hint_source_control_endpoints` is `x`: expected a",
        ),
        (
            "[{worker_id: 3, router_hint_source_control_endpoints: {-1: a}}]",
            "worker 3: a key of `router_hint_source_control_endpoints` is `-1`: expected a",
        ),
        ("[{worker_id: 3, metrics_endpoint: ftp://x}]", "worker 3: metrics_endpoint: it does not"),
        ("[{worker_id: 3, endpoint: 2026-01-01}]", None),
        ("[{3: 3, worker_id: 3}]", "a key of `workers[0]`: expected a text"),
    ],
)
def test_faults_are_reported_in_one_line(text, fault):
    if fault is None:  # a date is accepted as a text
        assert read(text)[3].endpoint == "2026-01-01"
        return
    with pytest.raises(ValueError, match=f"^{re.escape(fault)}"):
        read(text)


def test_more_workers_than_there_may_be_are_refused():
    with pytest.raises(ValueError, match="4097 workers are listed, at most 4096"):
        read_workers_document([{"worker_id": n} for n in range(4097)])
