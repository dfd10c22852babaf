"""Tests that compiled answers with API keys are those of the ordinary path, for all callers."""

import json

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from select_service.auth.keys_file import read_api_keys
from select_service.auth.roles import CALLER
from select_service.fastpath import authenticated
from select_service.fastpath.parsing import request_layout
from tests.builders import worker_body
from tests.builders.hypothesis_profiles import explores
from tests.builders.keys import bearer, entry, keys_file
from tests.builders.routes import BY_ID
from tests.fastpath.requests import BARE, HTTPX, request
from tests.fastpath.two_services import TwoServices

TENANTS = ("default", "red", "blue")
COMPILED = {
    "select": request_layout.SELECT,
    "select_and_reserve": request_layout.SELECT_AND_RESERVE,
    "select_pair": request_layout.SELECT_PAIR,
    "select_pair_and_reserve": request_layout.SELECT_PAIR_AND_RESERVE,
    "create_reservation": request_layout.RESERVE,
    "prefill_complete": request_layout.PREFILL_COMPLETE,
    "output_block": request_layout.OUTPUT_BLOCK,
    "renew_reservation": request_layout.RENEW,
    "first_token": request_layout.FIRST_TOKEN,
    "free_reservation": request_layout.FREE,
}


def keys_of(folder):
    return keys_file(
        folder,
        entry("web", "caller"),
        entry("red", "caller", tenants=["red"]),
        entry("both", "caller", tenants=["red", "blue"]),
        entry("ops", "operator"),
        entry("few", "caller", reservations=2),
        entry("slow", "caller", requests_per_s=0.000001, burst=3),
        entry("scraper", "metrics"),
    )


def authorized(*values, headers=BARE):
    return (*headers, *(("Authorization", value) for value in values))


def prompt(tenant="default", **fields):
    return {"model_name": "m", "tenant_id": tenant, "token_ids": list(range(9)), **fields}


def booking(name, *values, tenant="default"):
    body = prompt(tenant, reservation_id=name)
    return request("POST /select_and_reserve", authorized(*values), body)


def selecting(*values, tenant="default"):
    return request("POST /select", authorized(*values), prompt(tenant))


def statuses(answers):
    """Return the statuses of all answers in these bytes; no body contains such a line."""
    return [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]


def services(folder, *flags):
    both = TwoServices("--api-keys-file", str(keys_of(folder)), *flags)
    for number, tenant in enumerate(TENANTS, 1):
        body = worker_body(number) | {"tenant_id": tenant}
        registered = request("POST /workers", authorized(bearer("ops")), body)
        assert statuses(both.send(registered)) == [201]
    both.reconnect()
    return both


@pytest.fixture
def both(tmp_path):
    with services(tmp_path) as pair:
        yield pair


def test_compiled_routes_are_for_callers():
    assert len(COMPILED) == request_layout.N_ROUTES
    for operation_id in COMPILED:
        may_call = BY_ID[operation_id].may_call
        assert CALLER in may_call.roles
        assert may_call.is_scoped


def test_from_the_second_request_on_a_connection_is_answered_by_compiled_code(both):
    for number in range(5):
        assert statuses(both.send(selecting(bearer("web")))) == [200]
        assert both.answered == number
    both.reconnect()
    both.send(selecting(bearer("web")))
    assert both.answered == 4


@pytest.mark.parametrize(
    "values",
    [
        (),
        (bearer("red"),),
        (bearer("scraper"),),
        (bearer("web") + "x",),
        (bearer("web")[:-1],),
        (bearer("web").upper(),),
        (bearer("web"), bearer("web")),
        (bearer("web"), bearer("red")),
        (bearer("red"), bearer("web")),
        (bearer("web"), ""),
        ("",),
        ("Basic " + bearer("web"),),
        (bearer("web") + ", " + bearer("red"),),
    ],
)
def test_another_key_on_a_connection_is_judged_anew(both, values):
    both.send(selecting(bearer("web")))
    answers = both.send(selecting(bearer("web")) + selecting(*values) + selecting(bearer("web")))
    first, second, third = statuses(answers)
    assert (first, third) == (200, 200)
    assert second in (401, 403)
    assert both.answered >= 1


def test_nothing_in_a_request_can_pass_for_the_key(both):
    """The key is in other places: in names, bodies, folded lines, behind the end of a request."""
    both.send(selecting(bearer("web")))
    key = f"Authorization: {bearer('web')}"
    body = prompt(selection_id=f"\r\n{key}\r\n")
    tricks = [
        request("POST /select", (*BARE, ("X-Authorization", bearer("web"))), prompt()),
        request("POST /select", (*BARE, ("Authorization-X", bearer("web"))), prompt()),
        request("POST /select", (*BARE, ("X", f"a\r\n {key}")), prompt()),
        request("POST /select", (*BARE, ("X", f"a\n{key}")), prompt()),
        request("POST /select", (*BARE, ("Authorization ", bearer("web"))), prompt()),
        request("POST /select", BARE, body),
        request(f"POST /select?{key.replace(' ', '%20')}", BARE, prompt()),
    ]
    for trick in tricks:
        answers = both.send(selecting(bearer("web")) + trick)
        assert statuses(answers)[0] == 200
        assert statuses(answers)[-1] in (400, 401, 404), trick
        both.reconnect()
        both.send(selecting(bearer("web")))


def test_a_body_that_holds_a_request_is_a_body(both):
    """Bytes of the body are not read as a request with the key of the connection."""
    both.send(selecting(bearer("web")))
    inner = booking("smuggled", bearer("web"))
    for line in ("POST /select", "POST /nowhere"):
        outer = request(line, authorized(bearer("web")), inner)
        both.send(outer)
        both.send(request("POST /select", BARE, inner))
        chunked = (*authorized(bearer("web")), ("Transfer-Encoding", "chunked"))
        both.send(request(line, (*chunked, ("Content-Length", "5")), None) + inner)
        both.reconnect()
        both.send(selecting(bearer("web")))
    answer = both.send(request("GET /reservations", authorized(bearer("web"))))
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["total"] == 0


@pytest.mark.parametrize("name", ["red", "both"])
def test_bound_keys_are_answered_by_compiled_code_within_their_tenants(both, name):
    both.send(selecting(bearer(name), tenant="red"))
    before = both.answered
    assert statuses(both.send(booking("a", bearer(name), tenant="red"))) == [200]
    for verb in ("prefill_complete", "output_block", "renew"):
        call = request(f"POST /reservations/a/{verb}", authorized(bearer(name)))
        assert statuses(both.send(call)) == [200]
    assert statuses(both.send(request("DELETE /reservations/a", authorized(bearer(name))))) == [200]
    assert both.answered == before + 5


def test_bound_keys_are_held_to_their_tenants(both):
    both.send(booking("theirs", bearer("web"), tenant="blue"))
    both.reconnect()
    both.send(selecting(bearer("red"), tenant="red"))
    before = both.answered
    for tenant in ("default", "blue"):
        assert statuses(both.send(selecting(bearer("red"), tenant=tenant))) == [403]
        assert statuses(both.send(booking("x", bearer("red"), tenant=tenant))) == [403]
    for verb in ("prefill_complete", "output_block", "renew"):
        call = request(f"POST /reservations/theirs/{verb}", authorized(bearer("red")))
        assert statuses(both.send(call)) == [404]
    call = request("DELETE /reservations/theirs", authorized(bearer("red")))
    assert statuses(both.send(call)) == [404]
    assert statuses(both.send(booking("theirs", bearer("red"), tenant="red"))) == [409]
    assert both.answered == before
    assert both.fast.selector.ledger.reservations.find_reservation("theirs") is not None


def test_a_later_tenant_is_told_apart(both):
    """The ledger renumbers its sums, so remembered numbers must go."""
    both.send(selecting(bearer("red"), tenant="red"))
    for name, tenant in (("a", "red"), ("b", "blue"), ("c", "default"), ("d", "red")):
        both.reconnect()
        both.send(selecting(bearer("web")))
        assert statuses(both.send(booking(name, bearer("web"), tenant=tenant))) == [200]
        both.reconnect()
        both.send(selecting(bearer("red"), tenant="red"))
        call = request(f"POST /reservations/{name}/renew", authorized(bearer("red")))
        assert statuses(both.send(call)) == [200 if tenant == "red" else 404]


def test_a_key_that_is_revoked_ends_on_a_live_connection_at_once(both, tmp_path):
    both.send(selecting(bearer("web")))
    assert statuses(both.send(selecting(bearer("web")))) == [200]
    keys = [key for key in read_api_keys(tmp_path / "keys.toml") if key.name != "web"]
    for side in (both.fast, both.ordinary):
        side.service.guard.replace_keys(keys)
    before = both.answered
    assert statuses(both.send(selecting(bearer("web")))) == [401]
    assert both.answered == before


def test_a_key_that_stays_goes_on_when_others_change(both, tmp_path):
    both.send(selecting(bearer("web")))
    keys = [key for key in read_api_keys(tmp_path / "keys.toml") if key.name != "red"]
    for side in (both.fast, both.ordinary):
        side.service.guard.replace_keys(keys)
    before = both.answered
    assert statuses(both.send(selecting(bearer("web")))) == [200]
    assert both.answered == before + 1


def test_a_key_that_loses_a_tenant_loses_it_on_a_live_connection(both, tmp_path):
    both.send(selecting(bearer("both"), tenant="blue"))
    assert statuses(both.send(selecting(bearer("both"), tenant="blue"))) == [200]
    less = [
        key._replace(tenants=frozenset({"red"})) if key.name == "both" else key
        for key in read_api_keys(tmp_path / "keys.toml")
    ]
    for side in (both.fast, both.ordinary):
        side.service.guard.replace_keys(less)
    assert statuses(both.send(selecting(bearer("both"), tenant="blue"))) == [403]


def test_quotas_count_on_both_paths(both):
    both.send(selecting(bearer("few")))
    assert [statuses(both.send(booking(n, bearer("few")))) for n in "abc"] == [[200], [200], [429]]
    free = request("DELETE /reservations/a", authorized(bearer("few")))
    assert statuses(both.send(free)) == [200]
    assert statuses(both.send(booking("c", bearer("few")))) == [200]
    assert statuses(both.send(booking("d", bearer("few")))) == [429]
    both.reconnect()
    assert statuses(both.send(selecting(bearer("slow")) * 5)) == [200, 200, 200, 429, 429]


def test_of_too_many_sets_of_tenants_the_rest_is_answered_in_python(tmp_path, monkeypatch):
    monkeypatch.setattr(authenticated, "HANDLERS_MAX", 2)
    with services(tmp_path) as pair:
        for name, n in (("red", 1), ("both", 0), ("web", 1)):
            before = pair.answered
            for _ in range(2):
                assert statuses(pair.send(selecting(bearer(name), tenant="red"))) == [200]
            assert pair.answered == before + n
            pair.reconnect()


class AnswersAreAlike(RuleBasedStateMachine):
    """Pipelines of requests with all kinds of keys, cut anywhere, to two services."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.waiting = []

    @initialize()
    def start_accepting(self):
        self.both = services(self.folder)

    def teardown(self):
        if hasattr(self, "both"):
            self.both.__exit__(None, None, None)

    values = st.sampled_from(
        [
            *[(bearer(name),) for name in ("web", "red", "both", "ops", "few", "scraper", "no")],
            (),
            (bearer("web"), bearer("red")),
            (" " + bearer("red"),),
            (bearer("red") + " ",),
        ]
    )
    tenants = st.sampled_from(TENANTS)
    names = st.sampled_from(["a", "b", "c"])

    @rule(values=values, tenant=tenants, name=names, is_select=st.booleans())
    def ask(self, values, tenant, name, is_select):
        if is_select:
            self.waiting.append(selecting(*values, tenant=tenant))
        else:
            self.waiting.append(booking(name, *values, tenant=tenant))

    @rule(values=values, tenant=tenants, name=names, worker=st.integers(1, 3))
    def reserve(self, values, tenant, name, worker):
        body = prompt(tenant, reservation_id=name, worker_id=worker)
        self.waiting.append(request("POST /reservations", authorized(*values), body))

    @rule(
        values=values,
        name=names,
        call=st.sampled_from(
            ["POST {}/prefill_complete", "POST {}/output_block", "POST {}/renew", "DELETE {}"]
        ),
    )
    def go_on(self, values, name, call):
        line = call.format(f"/reservations/{name}")
        self.waiting.append(request(line, authorized(*values, headers=HTTPX)))

    @rule(cuts=st.lists(st.floats(0, 1), max_size=3))
    def set_common_headers(self, cuts):
        said, self.waiting = b"".join(self.waiting), []
        places = sorted(int(cut * len(said)) for cut in cuts)
        parts = [said[a:b] for a, b in zip([0, *places], [*places, len(said)], strict=True)]
        self.both.send(*[part for part in parts if part])

    @rule()
    def leave_connections(self):
        self.both.reconnect()


def test_with_and_without_compiled_answers_all_is_alike(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    run_state_machine_as_test(
        lambda: AnswersAreAlike(folder), settings=explores(20, stateful_step_count=40)
    )
