"""Tests that Helm's own code renders the chart to the kept files, valid for Kubernetes.

The tests run only in scripts/test_deploy, which has the libraries. `scripts/test_deploy --renew`
writes the kept files again.
"""

import json
import os
import tarfile

import pytest
import yaml

from tests.deploy.chart import (
    CHART,
    NAMESPACE,
    RELEASE,
    RENDERED,
    VALUES,
    container,
    documents,
    fingerprint,
    values_of,
)

helm = pytest.importorskip("helm_python", reason="Helm's library is in scripts/test_deploy")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

VERSIONS = [f"1.{minor}" for minor in range(27, 38)]
OF_OTHERS = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, with schemas that are not Kubernetes' own."""
SECURED = {"keys": {"secret": "k"}}


def rendered(values, name=RELEASE):
    """Return all documents as texts, in the order of templates."""
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        made = chart.render(values, name=name, namespace=NAMESPACE)
    texts = "\n---\n".join(made[path] for path in sorted(made) if path.endswith(".yaml"))
    return [text.strip() for text in texts.split("\n---\n") if yaml.safe_load(text)]


def is_kept(document):
    """Return whether a document is kept; rules and dashboard are long copies of other files."""
    name = document["metadata"]["name"]
    return document["kind"] != "PrometheusRule" and not name.endswith("-dashboard")


def kept_text(name):
    texts = [text for text in rendered(values_of(name)) if is_kept(yaml.safe_load(text))]
    return "\n---\n".join([fingerprint(name), *texts]) + "\n"


@pytest.mark.parametrize("name", VALUES)
def test_kept_files_are_the_output_of_helm(name):
    path = RENDERED / f"{name}.yaml"
    if os.environ.get("RENEW"):
        path.write_text(kept_text(name))
    assert path.read_text() == kept_text(name)


@pytest.mark.parametrize("name", VALUES)
def test_helm_finds_nothing_to_complain_of(name):
    report = helm.lint(CHART, values_of(name), strict=True, namespace=NAMESPACE)
    assert [m for m in report["messages"] if m["severity"] > 1] == []
    assert report["errors"] == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", VALUES)
def test_kubernetes_has_every_field(name, version):
    judged = [d for d in documents(name) if d["kind"] not in OF_OTHERS]
    assert len(judged) >= 4
    for document in judged:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_wrong_field_would_be_noticed():
    (document,) = (d for d in documents("minimal") if d["kind"] == "PodDisruptionBudget")
    document["spec"]["maxUnavailble"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


def test_rules_and_dashboard_are_those_of_the_documents():
    found = {d["kind"]: d for d in map(yaml.safe_load, rendered(values_of("full")))}
    observability = CHART.parents[2] / "docs" / "examples" / "monitoring"
    rules = yaml.safe_load((observability / "alerts.yml").read_text())
    assert found["PrometheusRule"]["spec"] == rules
    (data,) = (
        d["data"]
        for d in map(yaml.safe_load, rendered(values_of("full")))
        if d["metadata"]["name"].endswith("-dashboard")
    )
    dashboard = json.loads((observability / "dashboard.json").read_text())
    assert json.loads(data["select-service.json"]) == dashboard


def test_the_default_values_alone_are_refused_with_the_missing_ones():
    with pytest.raises(helm.HelmError, match=r"keys\.secret.*insecure: true"):
        rendered({})


@pytest.mark.parametrize(
    "values",
    [
        {"replica": 3},
        {"replicas": 0},
        {"replicas": 17},
        {"settings": {"port": 9000}},
        {"settings": {"api-keys-file": "/tmp/keys"}},
        {"settings": {"queue_threshold": 1}},
        {"settings": {"priority-tiers": ["a", "b"]}},
        {"files": {"discovery.yaml": "sources: []"}},
        {"files": {"../keys.toml": ""}},
        {"image": {"digest": "latest"}},
        {"keys": {"secret": "k", "file": "keys.toml"}},
        {"planner": {"enable": True}},
        {"persistence": {"size": 4}},
    ],
    ids=str,
)
def test_values_that_make_no_sense_are_refused(values):
    with pytest.raises(helm.HelmError):
        rendered(SECURED | values)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"tls": {"clientCa": "ca.crt"}}, r"tls\.clientCa needs tls\.secret"),
        (
            {"tls": {"secret": "t", "clientCa": "ca.crt"}, "planner": {"enabled": True}},
            r"ask the planner for a certificate: planner\.certSecret",
        ),
    ],
    ids=["no certificate", "planner"],
)
def test_unusable_certificates_are_refused(values, complaint):
    with pytest.raises(helm.HelmError, match=complaint):
        rendered(SECURED | values)


def test_clients_reach_selectors_of_a_fleet_that_may_go_to_nothing():
    own = {"name": "q", "model_name": "q", "mode": "agg", "min_endpoint": 0}
    values = SECURED | {"planner": {"enabled": True, "config": {"deployments": [own]}}}
    with pytest.raises(helm.HelmError, match="readyWithoutWorkers: true"):
        rendered(values)
    texts = rendered(values | {"readyWithoutWorkers": True})
    (pod,) = [each for each in map(yaml.safe_load, texts) if each["kind"] == "StatefulSet"]
    (one,) = pod["spec"]["template"]["spec"]["containers"]
    assert one["readinessProbe"]["httpGet"]["path"] == "/ready?records=false&workers=false"


def test_one_volume_is_not_shared_by_two_planners():
    planner = {"enabled": True, "persistence": {"enabled": True}}
    with pytest.raises(helm.HelmError, match=r"planner\.replicas"):
        rendered(SECURED | {"planner": planner})
    kinds = [
        yaml.safe_load(text)["kind"]
        for text in rendered(SECURED | {"planner": planner | {"replicas": 1}})
    ]
    assert "PersistentVolumeClaim" in kinds


def test_sources_in_all_namespaces_need_a_cluster_role():
    sources = [
        {"kubernetes": {"labels": "a=b", "namespace": "*"}},
        {"kubernetes": {"slices": "c=d"}},
    ]
    found = [yaml.safe_load(t) for t in rendered(SECURED | {"discovery": {"sources": sources}})]
    rules = {d["kind"]: d["rules"] for d in found if d["kind"].endswith("Role")}
    verbs = ["list", "watch"]
    slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs}
    assert rules == {
        "ClusterRole": [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}],
        "Role": [slices],
    }
    assert {"ClusterRoleBinding", "RoleBinding"} <= {d["kind"] for d in found}


def test_a_kubeconfig_needs_no_rights_here():
    sources = [{"kubernetes": {"labels": "a=b", "kubeconfig": "/etc/other"}}]
    found = [yaml.safe_load(t) for t in rendered(SECURED | {"discovery": {"sources": sources}})]
    assert not {d["kind"] for d in found} & {"Role", "RoleBinding", "ClusterRole"}
    (pods,) = (d["spec"]["template"]["spec"] for d in found if d["kind"] == "StatefulSet")
    assert pods["automountServiceAccountToken"] is False


def test_a_long_name_of_a_release_stays_within_the_bounds_of_names():
    texts = rendered(SECURED | {"planner": {"enabled": True}}, name="a" * 53)
    names = [yaml.safe_load(text)["metadata"]["name"] for text in texts]
    assert max(map(len, names)) < 53  # a pod appends a number, a revision up to 11 characters more


def test_the_packaged_chart_holds_alerts_and_dashboard(tmp_path):
    path = helm.package(CHART, destination=str(tmp_path))
    (archive,) = tmp_path.iterdir()
    assert archive.name in str(path)
    with tarfile.open(archive) as packed:
        sizes = {member.name: member.size for member in packed.getmembers()}
    assert sizes["select-service/files/dashboard.json"] > 50_000
    assert sizes["select-service/files/alerts.yml"] > 10_000


def test_drain_and_pause_decide_how_long_a_pod_may_take():
    values = SECURED | {"drainSecs": 100.5, "preStopSecs": 30}
    (pods,) = (
        d["spec"]["template"]["spec"]
        for d in map(yaml.safe_load, rendered(values))
        if d["kind"] == "StatefulSet"
    )
    assert pods["terminationGracePeriodSeconds"] == 101 + 30 + 20
    assert "--drain-secs=100.5" in pods["containers"][0]["args"]
    assert container("minimal")["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "3"]
