"""Tests of the planner's API over HTTP."""

import msgspec
import pytest
from starlette.testclient import TestClient

from select_service.net.allowed_hosts import host_names_for
from select_service.planner.config import DeploymentConfig
from select_service.planner.config_loader import PlannerConfigError
from select_service.planner.connectors.dry_run_connector import DryRunConnector
from select_service.planner.connectors.virtual_connector import VirtualConnector
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import Role
from select_service.planner.deployment_status import DeploymentStatuses
from select_service.planner.json_bodies import BODY_BYTES_MAX
from select_service.planner.runtime.planner_api import build_application
from tests.planner.invented_ticks import a_role, a_tick, effects, statuses_of


class Member:
    def __init__(self, connector):
        self.connector = connector
        self.faults = {}


class Loop:
    """Loop that changes settings like a planner's loop, but with a single rule."""

    def __init__(self, **connectors):
        self.members = {name: Member(connector) for name, connector in connectors.items()}
        self.own = {
            name: DeploymentConfig(name=name, model_name="m", enable_load_scaling=True)
            for name in connectors
        }
        self.paused = set()

    def configs(self):
        return self.own

    def next_tick_s(self, name):
        return 1234.5

    def is_paused(self, name):
        return name in self.paused

    async def change_settings(self, name, fields, *, paused=None):
        changed = msgspec.structs.replace(self.own[name], **fields)
        if 0 <= changed.max_gpu_budget < changed.min_gpu_budget:
            raise PlannerConfigError("min_gpu_budget: expected at most max_gpu_budget")
        self.own[name] = changed
        if paused is not None:
            (self.paused.add if paused else self.paused.discard)(name)
        return changed


JSON = {"content-type": "application/json"}


@pytest.fixture
def loop():
    return Loop(a=DryRunConnector(None, {}), **{"b/c": VirtualConnector(None)})


@pytest.fixture
def api(loop):
    return TestClient(build_application(loop, statuses_of("a", "b/c")))


def test_the_status_shows_every_deployment(api, loop):
    loop.members["a"].faults["http://selector"] = "no answer"
    found = {each["name"]: each for each in api.get("/v1/status").json()["deployments"]}
    assert found.keys() == {"a", "b/c"}
    assert found["a"]["faults"] == {"http://selector": "no answer"}
    assert found["a"]["replicas"]["prefill"]["ready"] >= 1
    assert found["a"]["ticks"] == 20


def test_a_deployment_shows_its_last_tick_stage_by_stage(api):
    found = api.get("/v1/deployments/b%2Fc").json()
    assert found["summary"]["name"] == "b/c"
    assert found["diagnostics"]["roles"]["decode"]["sized"]["engine_rps"] == 6.0
    assert found["settings"]["ttft_ms"] == 500.0
    assert found["changes"][0]["wanted"] > found["changes"][0]["before"]


def test_a_deployment_that_has_not_ticked_yet_is_shown(loop):
    statuses = DeploymentStatuses()
    statuses.changed("a", DeploymentSettings(), 0.0)
    api = TestClient(build_application(loop, statuses))
    (found,) = api.get("/v1/status").json()["deployments"]
    assert (found["last_tick_s"], found["next_tick_s"]) == (None, 1234.5)
    assert [each["code"] for each in found["reasons"]] == ["before_first_tick"]
    assert api.get("/v1/deployments/a").json()["diagnostics"] is None
    assert "No tick yet" in api.get("/report").text


@pytest.mark.parametrize(
    ("wanted", "codes"), [(3, ["advisory", "scale", "scale_up"]), (2, ["advisory", "no_change"])]
)
def test_advice_names_reasons_only_for_another_count(loop, wanted, codes):
    """The wish of a stage may be held back, or already fulfilled."""
    statuses = DeploymentStatuses()
    statuses.changed("a", DeploymentSettings(mode="agg"), 0.0)
    said = effects(
        60.0,
        {Role.DECODE: a_role(2, 0, wanted)},
        reasons=(Reason.ADVISORY,),
        throughput_reason=Reason.SCALE,
        load_reason=Reason.SCALE_UP,
    )
    statuses.ticked("a", a_tick(60.0), said, None)
    api = TestClient(build_application(loop, statuses))
    (found,) = api.get("/v1/status").json()["deployments"]
    assert [each["code"] for each in found["reasons"]] == codes


def test_bounds_are_changed_and_answered_as_they_count_now(api, loop):
    body = {"max_gpu_budget": 4, "min_endpoint": 2, "prefill_min_endpoint": None, "paused": True}
    answer = api.patch("/v1/deployments/a", json=body)
    assert answer.status_code == 200
    assert answer.json()["settings"]["max_gpu_budget"] == 4
    assert answer.json()["paused"] is True
    assert loop.own["a"].min_endpoint == 2
    assert api.patch("/v1/deployments/a", json={"paused": False}).json()["paused"] is False
    assert api.get("/v1/status").json()["deployments"][0]["paused"] is False


@pytest.mark.parametrize(
    ("body", "status", "code", "word"),
    [
        (b"{", 400, "malformed_json", "JSON"),
        (b"\xff", 400, "malformed_json", "JSON"),
        (b"[]", 422, "invalid_body", "array"),
        (b'{"min_endpoints": 1}', 422, "invalid_body", "`min_endpoint`"),
        (b'{"ttft_ms": 1}', 422, "invalid_body", "can be changed"),
        (b'{"min_endpoint": -1}', 422, "invalid_body", "min_endpoint"),
        (b'{"min_endpoint": true}', 422, "invalid_body", "min_endpoint"),
        (b'{"max_gpu_budget": 1.5}', 422, "invalid_body", "max_gpu_budget"),
        (b'{"min_gpu_budget": null}', 422, "invalid_body", "min_gpu_budget"),
        (b'{"advisory": true, "min_gpu_budget": 9}', 422, "invalid_settings", "max_gpu_budget"),
        (b" " * (BODY_BYTES_MAX + 1), 413, "body_too_large", "bytes"),
    ],
)
def test_invalid_changes_change_nothing(api, loop, body, status, code, word):
    before = loop.own["a"]
    answer = api.patch("/v1/deployments/a", content=body, headers=JSON)
    assert answer.status_code == status
    assert answer.json()["code"] == code
    assert word in answer.json()["error"]
    assert loop.own["a"] == before


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_only_json_changes_anything(api, loop, kind):
    """Browsers send other types to any origin without a preflight request."""
    before = loop.own["a"]
    headers = {} if kind is None else {"content-type": kind}
    for method, path in (
        ("PATCH", "/v1/deployments/a"),
        ("POST", "/v1/decision/-1/complete?deployment=b/c"),
    ):
        answer = api.request(method, path, content=b'{"paused": true}', headers=headers)
        assert (answer.status_code, answer.json()["code"]) in (
            (415, "unsupported_media_type"),
            (400, "bad_request"),
        )
    assert loop.own["a"] == before
    assert "a" not in loop.paused


@pytest.mark.parametrize("origin", ["https://elsewhere.example", "null", "http://testserver:81"])
def test_pages_of_another_origin_change_nothing(api, loop, origin):
    headers = {"origin": origin, **JSON}
    answer = api.patch("/v1/deployments/a", json={"paused": True}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "origin_not_allowed")
    assert "a" not in loop.paused
    without_body = api.post("/v1/decision/0/complete?deployment=b/c", headers={"origin": origin})
    assert without_body.status_code == 403
    assert api.get("/v1/status", headers=headers).status_code == 200
    own = {"origin": "http://testserver"}
    assert api.patch("/v1/deployments/a", json={"paused": True}, headers=own).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/deployments/nobody", 404),
        ("PATCH", "/v1/deployments/nobody", 404),
        ("GET", "/report?deployment=nobody", 404),
        ("GET", "/v1/decision?deployment=a", 404),
        ("GET", "/v1/decision?deployment=nobody", 404),
        ("GET", "/nothing", 404),
        ("POST", "/v1/status", 405),
    ],
)
def test_missing_things_are_json_errors(api, method, path, status):
    answer = api.request(method, path)
    assert answer.status_code == status
    assert answer.json().keys() == {"error", "code"}


def test_the_only_virtual_deployment_needs_no_name(api):
    for path in ("/v1/decision", "/v1/decision?deployment=b/c"):
        assert api.get(path).json()["decision_id"] == -1


def test_several_virtual_deployments_need_a_name():
    loop = Loop(a=VirtualConnector(None), b=VirtualConnector(None))
    api = TestClient(build_application(loop, statuses_of("a", "b", ticks=1)))
    assert api.get("/v1/decision").status_code == 404
    assert api.get("/v1/decision?deployment=b").status_code == 200


def test_the_report_shows_one_or_all(api):
    everything, one = api.get("/report"), api.get("/report?deployment=a")
    assert everything.headers["content-type"].startswith("text/html")
    assert everything.text.count("<section") == 2
    assert one.text.count("<section") == 1


def test_metrics_and_health(api):
    assert "dynamo_planner_gpu_hours" in api.get("/metrics").text
    assert api.get("/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize("path", ["/v1/status", "/v1/decision", "/report", "/metrics", "/nowhere"])
def test_nothing_is_answered_under_a_name_that_leads_here_by_itself(loop, path):
    """The host name is that of a page in a browser on this machine (DNS rebinding)."""
    api = TestClient(build_application(loop, statuses_of("a"), ("localhost", "planner.example")))
    answer = api.get(path, headers={"host": "evil.example:8095"})
    assert (answer.status_code, answer.json()["code"]) == (403, "host_not_allowed")
    assert "evil.example" in answer.json()["error"]
    patch = api.patch("/v1/deployments/a", json={"paused": True}, headers={"host": "evil.example"})
    assert patch.status_code == 403
    assert not loop.paused
    for host in ("localhost:8095", "127.0.0.1:8095", "[::1]:8095", "planner.example"):
        assert api.get("/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("host", "given", "names"),
    [
        ("127.0.0.1", None, ("localhost",)),
        ("::1", None, ("localhost",)),
        ("localhost", ("planner.example",), ("planner.example", "localhost")),
        ("127.0.0.1", ("*",), None),
        ("0.0.0.0", None, None),
        ("0.0.0.0", ("planner",), ("planner",)),
    ],
)
def test_names_matter_on_loopback_or_where_they_are_given(host, given, names):
    assert host_names_for(host, given, needs_key=False) == names
