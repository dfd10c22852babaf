"""Tests that the chart fits the code: flags, ports, routes, files, rights."""

import re

import pytest
import yaml

from select_service.config.discovery_sources import source_settings
from select_service.config.open_interfaces import check_open_interfaces, is_unauthenticated
from select_service.config.settings_loader import parse_config
from select_service.config.settings_table import SETTINGS
from select_service.planner.config_loader import convert_config
from tests.builders.routes import ROUTES
from tests.deploy.chart import (
    CHART,
    NAMESPACE,
    RENDERED,
    VALUES,
    arguments,
    container,
    documents,
    fingerprint,
    of_kind,
    one,
    variables,
)

ROOT = CHART.parents[2]
EXAMPLES = ROOT / "docs" / "examples"
FLAGS = {setting.flag for setting in SETTINGS if setting.flag}


def config(name):
    return parse_config(arguments(name), variables(name))


@pytest.mark.parametrize("name", VALUES)
def test_kept_files_match_the_chart_and_the_values(name):
    first = (RENDERED / f"{name}.yaml").read_text().splitlines()[0]
    assert first == fingerprint(name), "scripts/test_deploy --renew writes it anew"


def test_the_version_is_that_of_the_package():
    (version,) = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.parametrize("name", VALUES)
def test_the_service_accepts_its_arguments(name):
    check_open_interfaces(config(name))
    assert is_unauthenticated(config(name)) is (name == "open")


def test_every_flag_of_the_templates_exists():
    texts = [path.read_text() for path in (CHART / "templates").glob("*.yaml")]
    flags = {flag for text in texts for flag in re.findall(r"- (--[a-z-]+)", text)}
    assert len(flags) >= 15
    assert flags <= FLAGS


def test_flags_that_the_chart_gives_cannot_be_given_as_settings():
    schema = (CHART / "values.schema.json").read_text()
    names = yaml.safe_load(schema)["properties"]["settings"]["propertyNames"]["not"]["enum"]
    text = (CHART / "templates" / "statefulset.yaml").read_text()
    assert {f"--{name}" for name in names} == set(re.findall(r"- (--[a-z-]+)", text))


def test_each_replica_leaves_itself_out():
    for number in range(3):
        found = parse_config(arguments("minimal", f"select-service-{number}"), variables("minimal"))
        others = {f"select-service-{i}" for i in range(3) if i != number}
        hosts = [re.findall(r"://(select-service-\d)\.", url) for url in found["indexer_peers"]]
        assert {host for (host,) in hosts} == others
        assert len(found["replica_sync_peers"]) == 2


def test_replicas_are_found_under_the_names_that_kubernetes_gives_them():
    service = one("minimal", "Service", "-replicas")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    stateful = one("minimal", "StatefulSet")
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    pod = f"{stateful['metadata']['name']}-0"
    host = f"{pod}.{service['metadata']['name']}.{NAMESPACE}.svc.cluster.local"
    assert config("minimal")["advertise_url"] == f"http://{host}:8092"


def test_one_replica_alone_has_no_plane_of_replicas():
    assert config("open")["replica_sync_port"] is None
    assert [port["name"] for port in container("open")["ports"]] == ["http"]


@pytest.mark.parametrize("name", VALUES)
def test_ports_are_those_on_which_the_service_listens(name):
    found = config(name)
    ports = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
    expected = {"http": found["port"], "sync": found["replica_sync_port"]}
    assert ports == {key: port for key, port in expected.items() if port is not None}
    for service in of_kind(name, "Service"):
        if service["metadata"]["name"].endswith("-planner"):
            continue
        for port in service["spec"]["ports"]:
            assert port["port"] == ports[port["targetPort"]]


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_probes_request_open_routes(probe):
    asked = container("minimal")[probe]["httpGet"]
    path = asked["path"].partition("?")[0]
    (route,) = (r for r in ROUTES if (r.method, r.path) == ("GET", path))
    assert route.path in ("/health", "/ready")
    assert (route.path == "/ready") is (probe == "readinessProbe")


def test_files_of_the_arguments_lie_on_volumes():
    mounts = {m["mountPath"]: m for m in container("full")["volumeMounts"]}
    pods = one("full", "StatefulSet")["spec"]
    volumes = {v["name"] for v in pods["template"]["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in pods["volumeClaimTemplates"]}
    assert {m["name"] for m in mounts.values()} == volumes
    paths = [found for word in arguments("full") for found in re.findall(r"=(/\S+)", word)]
    assert len(paths) >= 7
    for path in paths:
        (mount,) = (m for place, m in mounts.items() if f"{path}/".startswith(f"{place}/"))
        written = path.startswith("/var/lib/select-service/")
        assert mount.get("readOnly", False) is not written


def test_sources_are_accepted_by_the_service(tmp_path):
    data = one("full", "ConfigMap", "-config")["data"]
    (tmp_path / "discovery.yaml").write_text(data["discovery.yaml"])
    found = source_settings(
        parse_config(["--discovery-config", str(tmp_path / "discovery.yaml")], {})
    )
    assert [source.place for source in found] == [
        "pods (own namespace) app=vllm",
        "endpointslices lab kubernetes.io/service-name=sglang",
        "engines.example:8000",
    ]


@pytest.mark.parametrize("name", VALUES)
def test_a_pod_is_not_killed_while_it_drains(name):
    pods = one(name, "StatefulSet")["spec"]["template"]["spec"]
    command = container(name).get("lifecycle", {"preStop": {"exec": {"command": ["", 0]}}})
    pause = float(command["preStop"]["exec"]["command"][1])
    assert pods["terminationGracePeriodSeconds"] >= pause + config(name)["drain_s"] + 20


@pytest.mark.parametrize(
    "document",
    [d for name in VALUES for d in of_kind(name, "StatefulSet", "Deployment")],
    ids=lambda d: f"{d['metadata']['name']}-{d['spec']['replicas']}",
)
def test_pods_have_no_rights_on_their_node(document):
    pods = document["spec"]["template"]["spec"]
    assert pods["securityContext"]["runAsNonRoot"] is True
    assert pods["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pods["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pods.keys()
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.M)
    context = pods["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user[1]), int(user[2]))
    for each in pods["containers"]:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert each["resources"]["requests"].keys() == {"cpu", "memory"}


@pytest.mark.parametrize("name", VALUES)
def test_selectors_find_the_pods_that_they_mean_and_no_others(name):
    pods = {
        d["metadata"]["name"]: d["spec"]["template"]["metadata"]["labels"]
        for d in of_kind(name, "StatefulSet", "Deployment")
    }
    chosen = {
        "Service": lambda d: d["spec"]["selector"],
        "PodDisruptionBudget": lambda d: d["spec"]["selector"]["matchLabels"],
        "NetworkPolicy": lambda d: d["spec"]["podSelector"]["matchLabels"],
    }
    for document in of_kind(name, *chosen):
        wanted = chosen[document["kind"]](document).items()
        found = [pod for pod, labels in pods.items() if wanted <= labels.items()]
        assert found == [document["metadata"]["name"].removesuffix("-replicas")]


def test_prometheus_calls_the_job_as_the_alerts_do():
    alerts = (ROOT / "docs" / "examples" / "monitoring" / "alerts.yml").read_text()
    monitor = one("full", "ServiceMonitor", "select-service")
    service = one("full", "Service", "-replicas")
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert f'up{{job="{labels[monitor["spec"]["jobLabel"]]}"}}' in alerts
    others = [d["metadata"]["labels"] for d in of_kind("full", "Service") if d != service]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert not any(wanted <= each.items() for each in others)  # each pod is scraped once


def rights(rules):
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def example(name):
    """Return the rights of an example; tests of discovery and planner check their use."""
    found = yaml.safe_load_all((EXAMPLES / name).read_text())
    return rights(rule for d in found if d["kind"] == "Role" for rule in d["rules"])


def roles(ending):
    return {
        role["metadata"]["namespace"]: rights(role["rules"])
        for role in of_kind("full", "Role")
        if role["metadata"]["name"].endswith(ending)
    }


def test_discovery_has_only_the_needed_rights_in_the_namespaces_of_its_sources():
    given = roles("-discovery")
    assert given == {
        NAMESPACE: example("discovery-rbac.yaml"),
        "lab": example("discovery-slices-rbac.yaml"),
    }


def test_the_planner_has_only_the_needed_rights():
    given = roles("-planner")
    assert set.union(*given.values()) == example("planner-rbac.yaml")
    kinds = {resource for _, resource, _ in given[NAMESPACE]}
    assert kinds == {"deployments", "deployments/scale", "pods", "leases"}


def test_the_planner_may_delete_pods_only_where_it_replaces_them():
    given = roles("-planner")
    assert ("", "pods", "delete") in given["lab"]
    assert ("", "pods", "delete") not in given[NAMESPACE], "its connector has replace: annotate"


def test_roles_are_given_to_the_accounts_of_the_pods():
    accounts = {d["metadata"]["name"] for d in of_kind("full", "ServiceAccount")}
    bound = 0
    for binding in of_kind("full", "RoleBinding"):
        (subject,) = binding["subjects"]
        assert subject["namespace"] == NAMESPACE
        assert subject["name"] in accounts
        assert binding["roleRef"]["name"] == binding["metadata"]["name"]
        bound += 1
    assert bound == len(list(of_kind("full", "Role"))) == 4


@pytest.mark.parametrize("name", VALUES)
def test_a_token_is_mounted_only_for_calls_of_the_cluster(name):
    for document in of_kind(name, "StatefulSet", "Deployment"):
        mounted = document["spec"]["template"]["spec"]["automountServiceAccountToken"]
        assert mounted is (name == "full")  # for sources that look for pods, and for scaled targets
    for account in of_kind(name, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


def planner_config(name="full"):
    return convert_config(
        yaml.safe_load(one(name, "ConfigMap", "-planner")["data"]["planner.yaml"])
    )


def test_the_planner_accepts_its_file_and_has_the_selectors():
    found = planner_config()
    assert found.selectors == tuple(
        f"https://select-service-{i}.select-service-replicas.{NAMESPACE}.svc.cluster.local:8092"
        for i in range(2)
    )
    assert found.api.host == "0.0.0.0"
    ports = container("full", "Deployment")["ports"]
    assert [port["containerPort"] for port in ports] == [found.api.port]


def test_files_of_the_planner_lie_on_volumes():
    mounts = {m["mountPath"]: m for m in container("full", "Deployment")["volumeMounts"]}
    found = planner_config()
    (argument,) = container("full", "Deployment")["args"]
    for path, written in (
        (argument.partition("=")[2], False),
        (found.api_key_file, False),
        (found.ca_file, False),
        (found.decision_log, True),
    ):
        (mount,) = (m for folder, m in mounts.items() if str(path).startswith(f"{folder}/"))
        assert mount.get("readOnly", False) is not written


def test_probes_of_the_planner_request_its_routes():
    app = (ROOT / "docs" / "guides" / "planner.md").read_text()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        path = container("full", "Deployment")[probe]["httpGet"]["path"]
        assert f"| `GET {path}` |" in app


def test_there_is_no_planner_by_default():
    assert "select-planner" not in yaml.safe_dump_all(documents("minimal"))


def test_with_a_certificate_all_clients_use_https():
    found = config("full")
    urls = [found["advertise_url"], *found["indexer_peers"], *planner_config().selectors]
    assert {url.partition("://")[0] for url in urls} == {"https"}
    assert container("full")["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert one("full", "ServiceMonitor", "-service")["spec"]["endpoints"][0]["scheme"] == "https"
    assert planner_config().ca_file == "/etc/select-planner/tls/ca.crt"


def test_the_planner_does_not_get_the_key_of_the_certificate():
    volumes = one("full", "Deployment")["spec"]["template"]["spec"]["volumes"]
    (tls,) = (volume["secret"] for volume in volumes if volume["name"] == "tls")
    assert tls["items"] == [{"key": "ca.crt", "path": "ca.crt"}]


def test_the_planner_presents_its_own_certificate_on_request():
    found = planner_config("certificates")
    mounts = {m["mountPath"]: m for m in container("certificates", "Deployment")["volumeMounts"]}
    assert mounts["/etc/select-planner/cert"]["readOnly"]
    assert found.client_cert_file == "/etc/select-planner/cert/tls.crt"
    assert found.client_key_file == "/etc/select-planner/cert/tls.key"
    volumes = one("certificates", "Deployment")["spec"]["template"]["spec"]["volumes"]
    (cert,) = (volume["secret"] for volume in volumes if volume["name"] == "cert")
    assert cert["secretName"] == "planner-tls"


def test_a_replica_sees_its_own_secret_key_alone():
    mounts = {m["name"]: m for m in container("full")["volumeMounts"]}
    assert mounts["replica-keys"]["subPathExpr"] == "$(POD_NAME).key"
    volumes = one("full", "StatefulSet")["spec"]["template"]["spec"]["volumes"]
    (public,) = (volume["secret"] for volume in volumes if volume["name"] == "replicas")
    assert [item["key"] for item in public["items"]] == ["replicas.toml"]


def test_replicas_without_keys_are_marked_insecure():
    assert config("minimal")["replica_sync_insecure"] is True
    assert config("full")["replica_sync_insecure"] is False
