"""Tests that two keys with different tenants never learn anything of each other."""

import json

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.builders import worker_body
from tests.builders.hypothesis_profiles import explores
from tests.builders.in_process import Api
from tests.builders.keys import bearer, entry, keys_file

TENANTS = ("red", "blue")
IDS = st.sampled_from(["a", "b", "c"])
WORKERS = st.integers(1, 3)
WHO = st.sampled_from(TENANTS)
READS = (
    "/workers",
    "/loads",
    *("/workers?view=compact", "/loads?view=compact", "/workers?limit=1", "/loads?limit=1"),
    "/reservations?limit=100",
    "/decisions",
    "/health/fleet",
    "/migrations",
    "/ready",
)


def other(tenant):
    return TENANTS[tenant == "red"]


def keys_of_tenants(folder, **quotas):
    keys = [entry("all", "caller", "operator")]
    keys += [entry(name, "caller", "operator", tenants=[name], **quotas) for name in TENANTS]
    return keys_file(folder, *keys)


def scope(tenant):
    return {"model_name": f"model-of-{tenant}", "tenant_id": tenant}


def a_worker_of(tenant, worker_id):
    body = worker_body(worker_id, endpoint=f"http://host-of-{tenant}:8000")
    return body | scope(tenant)


class TenantsAreApart(RuleBasedStateMachine):
    """Both register, book, read and try each other's ids; a model predicts each one's view."""

    def __init__(self, folder):
        super().__init__()
        path = keys_of_tenants(folder)
        self.api = Api("--api-keys-file", str(path), "--health-checks=on").__enter__()
        self.workers = {}
        self.held = {}

    def teardown(self):
        self.api.__exit__(None, None, None)

    def call(self, tenant, method, path, body=None):
        """Call with the tenant's key; assert that the other tenant is absent from the answer."""
        answer = self.api.call(method, path, body, authorization=bearer(tenant))
        assert answer.status not in (401, 500)
        shown = json.dumps(answer.body) + str(answer.headers)
        assert f"of-{other(tenant)}" not in shown
        assert f'"{other(tenant)}"' not in shown
        return answer

    @rule(tenant=WHO, worker_id=WORKERS)
    def register(self, tenant, worker_id):
        answer = self.call(tenant, "POST", "/workers", a_worker_of(tenant, worker_id))
        owner, is_here = self.workers.get(worker_id, (tenant, True))
        assert answer.status == (201 if owner == tenant else 409), is_here
        if answer.status == 201:
            self.workers[worker_id] = tenant, True

    @rule(tenant=WHO, worker_id=WORKERS)
    def delete_worker(self, tenant, worker_id):
        answer = self.call(tenant, "DELETE", f"/workers/{worker_id}")
        is_own = self.workers.get(worker_id, ("",))[0] == tenant
        assert answer.status == (200 if is_own else 404)
        if is_own:
            self.workers[worker_id] = tenant, False
            self._let_leave(worker_id)

    def _let_leave(self, worker_id):
        self.held = {name: at for name, at in self.held.items() if at[1] != worker_id}
        while self.api.service.selector.drain_removed_ranks(0.0):
            continue

    @rule(tenant=WHO, worker_id=WORKERS, verb=st.sampled_from(["drain", "undrain", "check"]))
    def manage(self, tenant, worker_id, verb):
        answer = self.call(tenant, "POST", f"/workers/{worker_id}/{verb}")
        if self.workers.get(worker_id, ("",))[0] != tenant:
            assert answer.status == 404

    @rule(tenant=WHO, worker_id=WORKERS)
    def change(self, tenant, worker_id):
        answer = self.call(tenant, "PATCH", f"/workers/{worker_id}", {"taints": [tenant]})
        is_own = self.workers.get(worker_id, ("",))[0] == tenant
        assert answer.status == (200 if is_own else 404)
        if is_own:
            self.workers[worker_id] = tenant, True

    @rule(tenant=WHO, name=IDS, is_select=st.booleans())
    def ask(self, tenant, name, is_select):
        body = scope(tenant) | {"token_ids": list(range(8)), "reservation_id": name}
        path = "/select_and_reserve"
        if is_select:
            del body["reservation_id"]
            body["selection_id"], path = name, "/select"
        answer = self.call(tenant, "POST", path, body)
        if answer.status == 200:
            chosen = answer.body["worker_id"]
            assert self.workers[chosen] == (tenant, True)
            if not is_select:
                assert name not in self.held
                self.held[name] = tenant, chosen
        elif name in self.held and not is_select:
            assert answer.status in (409, 503)

    @rule(tenant=WHO, name=IDS, worker_id=WORKERS)
    def reserve(self, tenant, name, worker_id):
        body = scope(tenant) | {"token_ids": [1, 2], "reservation_id": name, "worker_id": worker_id}
        answer = self.call(tenant, "POST", "/reservations", body)
        if answer.status == 201:
            assert name not in self.held
            assert self.workers[worker_id] == (tenant, True)
            self.held[name] = tenant, worker_id

    @rule(
        tenant=WHO,
        name=IDS,
        verb=st.sampled_from(["prefill_complete", "output_block", "renew", "migrated"]),
    )
    def go_on(self, tenant, name, verb):
        body = {"ok": True} if verb == "migrated" else None
        answer = self.call(tenant, "POST", f"/reservations/{name}/{verb}", body)
        is_own = self.held.get(name, ("",))[0] == tenant
        assert answer.status == (200 if is_own and verb != "migrated" else 404)

    @rule(tenant=WHO, name=IDS)
    def free(self, tenant, name):
        answer = self.call(tenant, "DELETE", f"/reservations/{name}")
        is_own = self.held.get(name, ("",))[0] == tenant
        assert answer.status == (200 if is_own else 404)
        if is_own:
            del self.held[name]

    @rule(tenant=WHO, name=IDS)
    def look_at_one(self, tenant, name):
        answer = self.call(tenant, "GET", f"/reservations/{name}")
        assert answer.status == (200 if self.held.get(name, ("",))[0] == tenant else 404)
        decision = self.call(tenant, "GET", f"/decisions/{name}")
        assert decision.status == 404 or decision.body["tenant_id"] == tenant

    @rule(tenant=WHO, path=st.sampled_from(READS))
    def read(self, tenant, path):
        assert self.call(tenant, "GET", path).status in (200, 503)

    @rule(
        tenant=WHO,
        path=st.sampled_from(["/overlap_scores", "/potential_loads", "/explain", "/select"]),
    )
    def ask_for_the_other(self, tenant, path):
        for body in (scope(other(tenant)), {"routing_group": other(tenant)}, {}):
            asked = {**body, "token_ids": [1]}
            answer = self.api.post(path, asked, authorization=bearer(tenant))
            assert (answer.status, answer.body["code"]) == (403, "forbidden")
        own = self.call(tenant, "POST", path, scope(tenant) | {"token_ids": [1]})
        assert own.status in (200, 503)

    @rule(tenant=WHO, path=st.sampled_from(["/loads", "/workers", "/planner/observation"]))
    def name_the_other(self, tenant, path):
        for field in ("tenant_id", "routing_group"):
            path_of_other = f"{path}?{field}={other(tenant)}"
            answer = self.api.call("GET", path_of_other, authorization=bearer(tenant))
            assert answer.status == 403

    @invariant()
    def lists_are_those_of_the_model(self):
        for tenant in TENANTS:
            page = self.call(tenant, "GET", "/reservations").body
            own = {name for name, (owner, _) in self.held.items() if owner == tenant}
            assert {row["reservation_id"] for row in page["reservations"]} == own
            assert page["total"] == len(own)
            listed = self.call(tenant, "GET", "/workers").body
            known = {number for number, (owner, _) in self.workers.items() if owner == tenant}
            assert {row["worker_id"] for row in listed} == known


def test_tenants_learn_nothing_of_each_other(tmp_path_factory):
    from hypothesis.stateful import run_state_machine_as_test

    folder = tmp_path_factory.mktemp("keys")
    run_state_machine_as_test(
        lambda: TenantsAreApart(folder), settings=explores(stateful_step_count=20)
    )


@pytest.fixture
def shared(tmp_path):
    with Api("--api-keys-file", str(keys_of_tenants(tmp_path))) as api:
        for worker_id, tenant in enumerate(TENANTS, 1):
            body = a_worker_of(tenant, worker_id)
            assert api.post("/workers", body, authorization=bearer("all")).status == 201
        yield api


def test_a_key_of_all_tenants_sees_all_of_them(shared):
    workers = shared.call("GET", "/workers", authorization=bearer("all")).body
    assert {each["tenant_id"] for each in workers} == set(TENANTS)


def test_a_refusal_names_no_scope_of_others(shared):
    body = {"model_name": "nobody", "tenant_id": "red", "token_ids": [1]}
    told = shared.post("/select", body, authorization=bearer("red")).body["error"]
    assert told == "no schedulable workers for model=nobody tenant=red"
    told = shared.post("/select", body, authorization=bearer("all")).body["error"]
    assert "tenant=blue" in told


def test_hints_of_a_bound_key_do_not_mention_others(tmp_path):
    with Api("--api-keys-file", str(keys_of_tenants(tmp_path)), DYN_USE_KV_EVENTS="true") as api:
        for worker_id, tenant in enumerate(TENANTS, 1):
            body = a_worker_of(tenant, worker_id) | {"kv_events_endpoint": "tcp://192.0.2.1:5557"}
            answer = api.post("/workers", body, authorization=bearer(tenant))
            assert "hints" not in answer.body
        seen = api.call("GET", "/workers/2", authorization=bearer("all")).body
        assert "is also used by worker 1" in str(seen["hints"])
        for path in ("/workers/2", "/ready"):
            assert "hints" not in str(api.call("GET", path, authorization=bearer("blue")).body)
