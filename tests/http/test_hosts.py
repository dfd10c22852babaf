"""Tests of the allowed host names: on the ordinary path and in the compiled comparison."""

import pytest

from select_service.http.host_checks import HostCheck, HostNotAllowed
from select_service.server import lifecycle
from tests.builders import worker_body
from tests.builders.in_process import Api
from tests.builders.in_thread import InThread
from tests.builders.keys import bearer, entry, keys_file
from tests.builders.running import Running, request

HOSTS = HostCheck(("localhost", "selector.example", ".svc.example"))


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost",
        "LOCALHOST:8092",
        "localhost.",
        "selector.example:1",
        "a.b.svc.example",
        "127.0.0.1",
        "127.0.0.1:8092",
        "10.1.2.3",
        "[::1]:8092",
        "[::1]",
    ],
)
def test_names_that_were_given_and_addresses_are_answered(host):
    HOSTS.check_host([(b"host", host.encode())])


@pytest.mark.parametrize(
    "host",
    [
        ":8092",
        ".",
        "evil.example",
        "evil.example:8092",
        "localhost.evil.example",
        "localhost@evil.example",
        "evil-selector.example",
        "svc.example",
        "xsvc.example",
        "127.0.0.1.evil.example",
        "[::1].evil",
        "[evil]",
        "\xe4",
    ],
)
def test_others_are_refused(host):
    with pytest.raises(HostNotAllowed, match="--allowed-hosts"):
        HOSTS.check_host([(b"host", host.encode("latin-1"))])


@pytest.mark.parametrize("path", ["/health", "/select", "/nowhere"])
def test_no_route_is_answered_under_a_name_that_is_not_allowed(path):
    with Api("--allowed-hosts", "selector.example") as api:
        answer = api.post(path, {}, host="evil.example")
        assert (answer.status, answer.body["code"]) == (403, "host_not_allowed")
        assert "evil.example" in answer.body["error"]
        assert api.call("GET", "/health", host="selector.example").status == 200
        text = api.call("GET", "/metrics", host="localhost").body
    assert 'requests_total{method="any",route="unknown",status="403"} 1.0' in text


def selected(service, host, **headers):
    body = {"model_name": "m", "token_ids": [1, 2, 3]}
    return service.call("POST", "/select", body, host=host, **headers).status


def answered_in_python(monkeypatch):
    """Return a list that grows with each request that the application receives."""
    seen, called = [], lifecycle.ApiApplication.__call__

    async def noting(self, scope, receive, send):
        seen.append(scope["path"])
        await called(self, scope, receive, send)

    monkeypatch.setattr(lifecycle.ApiApplication, "__call__", noting)
    return seen


def test_compiled_answers_are_for_usual_names_alone(monkeypatch):
    seen = answered_in_python(monkeypatch)
    with InThread("--allowed-hosts", "selector.example") as service:
        assert service.call("POST", "/workers", worker_body(), host="evil").status == 403
        own = f"localhost:{service.port}"
        assert service.call("POST", "/workers", worker_body(), host=own).status == 201
        seen.clear()
        for host in (own, "127.0.0.1", "selector.example", f"selector.example:{service.port}"):
            assert selected(service, host) == 200
        assert seen == []
        assert selected(service, "10.0.0.1") == 200
        for host in ("evil.example", "localhos", "localhostx", f"selector.example:{service.port}0"):
            expected = 200 if host.startswith("selector.example") else 403
            assert selected(service, host) == expected
        assert len(seen) == 5


def test_names_count_where_keys_are_on_too(tmp_path):
    path = keys_file(tmp_path, entry("web", "caller", "operator"))
    with InThread("--api-keys-file", str(path), "--allowed-hosts", "a.example") as service:
        key = {"authorization": bearer("web")}
        registered = service.call("POST", "/workers", worker_body(), host="a.example", **key)
        assert registered.status == 201
        with service.client() as client:
            for host, status in (("a.example", 200), ("a.example", 200), ("evil", 403)):
                body = {"model_name": "m", "token_ids": [1]}
                client.send(request("POST", "/select", body, host=host, **key))
                assert client.answer().status == status


def test_ready_reports_a_service_without_keys():
    with Api("--host", "0.0.0.0", "--insecure") as api:
        assert api.get("/ready").body["insecure"] is True
    with Api() as api:
        assert "insecure" not in api.get("/ready").body


@pytest.mark.process
@pytest.mark.parametrize("path", [(), ("--no-fast-path",)])
def test_a_request_without_a_name_is_let_in(path):
    """HAProxy checks health like this; its usual version, 1.0, needs no `Host`."""
    with Running("--allowed-hosts", "localhost", *path) as service:
        assert service.call("POST", "/workers", worker_body()).status == 201
        body = b'{"model_name": "m", "token_ids": [1, 2, 3]}'
        select = b"POST /select HTTP/1.0\r\ncontent-type: application/json\r\n"
        for sent in (
            b"GET /health HTTP/1.0\r\n\r\n",
            b"GET /ready HTTP/1.0\r\n\r\n",
            select + b"content-length: %d\r\n\r\n" % len(body) + body,
            b"GET /health HTTP/1.1\r\nhost:\r\n\r\n",
        ):
            with service.client() as client:
                client.send(sent)
                assert client.answer().status == 200
        with service.client() as client:
            client.send(b"GET /health HTTP/1.1\r\n\r\n")
            assert client.answer().status == 400
        assert service.call("GET", "/health", host="evil.example").status == 403


@pytest.mark.parametrize("flags", [(), ("--insecure",)])
def test_a_page_of_another_origin_changes_nothing(flags):
    with Api(*flags) as api:
        api.post("/workers", worker_body(1))
        for method, path in (
            ("POST", "/workers/1/drain"),
            ("POST", "/workers"),
            ("DELETE", "/workers/1"),
            ("POST", "/reservations/a/prefill_complete"),
        ):
            body = worker_body(2) if path == "/workers" else None
            answer = api.call(method, path, body, origin="https://evil.example")
            assert (answer.status, answer.body["code"]) == (403, "origin_not_allowed")
        assert [each["worker_id"] for each in api.call("GET", "/workers").body] == [1]
        assert api.call("GET", "/workers", origin="https://evil.example").status == 200


def test_a_page_of_the_service_itself_may_change_something():
    with Api() as api:
        api.post("/workers", worker_body(1))
        own = {"origin": "http://localhost:8092", "host": "localhost:8092"}
        assert api.call("POST", "/workers/1/drain", None, **own).status == 202


def test_with_keys_any_program_may_name_an_origin(tmp_path):
    path = keys_file(tmp_path, entry("a", "operator"))
    with Api("--api-keys-file", str(path)) as api:
        headers = {"authorization": bearer("a"), "origin": "https://gateway.example"}
        assert api.post("/workers", worker_body(1), **headers).status in (200, 201)
