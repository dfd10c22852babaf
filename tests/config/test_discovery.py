"""Tests of files that list sources, and of errors in such files."""

import importlib.util
import re
from pathlib import Path

import pytest

from select_service.config.discovery_sources import (
    DnsSource,
    FileSource,
    KubernetesSource,
    source_settings,
)
from select_service.config.settings_loader import ConfigError, parse_config

HAS_DNS = importlib.util.find_spec("dns") is not None
needs_dns = pytest.mark.skipif(not HAS_DNS, reason="without dnspython")


def settings_of(folder, text, *flags):
    path = folder / "discovery.yaml"
    path.write_text(text)
    return source_settings(parse_config(["--discovery-config", str(path), *flags], {}))


@pytest.fixture
def workers(tmp_path):
    path = tmp_path / "workers.yaml"
    path.write_text("[{worker_id: 1}]")
    return path


@needs_dns
def test_sources_are_listed_first_the_file_of_the_flag(tmp_path, workers):
    text = f"""
    sources:
      - file: {workers}
      - {{name: pods, dns: "vllm.prod.svc:8000", worker: {{replay_endpoint: "tcp://{{host}}:1"}}}}
      - {{srv: _http._tcp.vllm.prod.svc, ask: false}}
    """
    template = {"replay_endpoint": "tcp://{host}:1"}
    assert settings_of(tmp_path, text, "--workers-file", str(workers)) == [
        FileSource("workers-file", workers),
        FileSource("file-1", workers),
        DnsSource("pods", "vllm.prod.svc", 8000, False, template, True),
        DnsSource("srv-3", "_http._tcp.vllm.prod.svc", 0, True, {}, False),
    ]


def test_pods_are_found_by_their_labels(tmp_path):
    pytest.importorskip("kubernetes_asyncio")
    text = """
    sources:
      - {kubernetes: {labels: app=vllm, namespace: prod, port: 8000}, worker: {taints: ["{node}"]}}
      - {name: all, kubernetes: {labels: app, namespace: "*", kubeconfig: config}, ask: false}
    """
    template = {"taints": ["{node}"]}
    assert settings_of(tmp_path, text) == [
        KubernetesSource("kubernetes-1", "prod", "app=vllm", 8000, None, template, True),
        KubernetesSource("all", "*", "app", None, Path("config"), {}, False),
    ]


def test_endpoints_are_found_by_their_service_or_its_labels(tmp_path):
    pytest.importorskip("kubernetes_asyncio")
    text = """
    sources:
      - {kubernetes: {service: vllm, port_name: api}}
      - {kubernetes: {slices: tier=gpu, namespace: "*", port: 8000}, ask: false}
    """
    by_name, by_label = settings_of(tmp_path, text)
    labels = "kubernetes.io/service-name=vllm"
    assert by_name == KubernetesSource(
        "kubernetes-1", None, labels, None, None, {}, True, of_slices=True, port_name="api"
    )
    assert by_label == KubernetesSource(
        "kubernetes-2", "*", "tier=gpu", 8000, None, {}, False, of_slices=True
    )
    assert by_name.place == f"endpointslices (own namespace) {labels}"


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("kubernetes: {service: a, slices: a=b}", "exactly one of labels, service, slices"),
        ("kubernetes: {service: a.b}", "expected a text that matches"),
        ("kubernetes: {labels: a, port_name: http}", "`port_name` is for service and slices"),
        ("kubernetes: {service: a, port: 1, port_name: b}", "`port_name` is for service and"),
        ("kubernetes: {}", "exactly one of labels, service, slices"),
        ("kubernetes: {labels: a, namespace: A}", "expected a text that matches"),
        ('kubernetes: {labels: a}, worker: {endpoint: "{ip}"}', "unknown name `{ip}`"),
    ],
)
def test_faults_of_pod_sources_are_reported(tmp_path, source, fault):
    pytest.importorskip("kubernetes_asyncio")
    with pytest.raises(ConfigError, match=re.escape(fault)):
        settings_of(tmp_path, "sources: [{" + source + "}]")


def test_without_sources_there_are_none():
    assert source_settings(parse_config([], {})) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("sources: []", "`sources`: expected a list of at least 1 items, got 0 items"),
        ("sources: [{name: a}]", "source 1: exactly one of file, dns, srv"),
        ("sources: [{file: a, dns: b}]", "source 1: exactly one of"),
        ("sources: [{file: a, worker: {taints: []}}]", "source `file-1`: `worker` is not valid"),
        ("sources: [{files: a}]", "`sources[0]`: unknown field `files`: did you mean `file`?"),
        ("sources: [{file: a, name: x y}]", "`sources[0].name`: expected a text that matches"),
        (
            "sources: [{file: a, name: b}, {file: a, name: b}]",
            "duplicate source name `b`: give each source its own name",
        ),
        (
            "sources: [{file: a, name: workers-file}]",
            "duplicate source name `workers-file`: give each source its own name",
        ),
    ],
)
def test_faults_are_reported_in_one_line(tmp_path, text, fault):
    with pytest.raises(ConfigError) as caught:
        settings_of(tmp_path, text)
    said = str(caught.value)
    assert said.startswith(f"--discovery-config {tmp_path / 'discovery.yaml'}: {fault}")
    assert "\n" not in said


@needs_dns
@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('dns: "vllm"', "`dns` must be NAME:PORT, the host name and the port of the engines"),
        ('dns: "vllm:70000"', "`dns` must be NAME:PORT"),
        ('dns: "a b:80"', "`a b` is not a host name"),
        ('srv: "a:80"', "`a:80` is not a host name"),
        ('dns: "a:80", worker: {block: 3}', "worker: unknown field `block`"),
        ('dns: "a:80", worker: {endpoint: "{pod}"}', "worker: unknown name `{pod}`: use one of"),
    ],
)
def test_faults_of_name_sources_are_reported(tmp_path, source, fault):
    with pytest.raises(ConfigError) as caught:
        settings_of(tmp_path, "sources: [{name: x, " + source + "}]")
    assert f"source `x`: {fault}" in str(caught.value)


@pytest.mark.skipif(HAS_DNS, reason="with dnspython")
def test_a_name_needs_its_extra(tmp_path):
    with pytest.raises(ConfigError, match="pip install 'select-service\\[dns\\]'"):
        settings_of(tmp_path, 'sources: [{dns: "a:80"}]')


def test_a_file_that_is_wrong_stops_the_start(tmp_path, workers):
    workers.write_text("3")
    with pytest.raises(
        ConfigError, match=r"--discovery-config: file .*workers\.yaml: the document: expected"
    ):
        settings_of(tmp_path, f"sources: [{{file: {workers}}}]")
