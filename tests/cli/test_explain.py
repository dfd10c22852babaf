"""Tests that `select-service explain` shows the answers of a running service."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

import pytest

from select_service.__main__ import main
from tests.builders import worker_body
from tests.builders.in_process import Api
from tests.builders.in_thread import InThread

PROMPT = {"model_name": "m", "token_ids": list(range(34))}


@pytest.fixture
def answers():
    """Yield URL, requests and answers by path of a server that replays a service's answers."""
    asked, said = [], {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(b"")

        def do_POST(self):
            self.answer(self.rfile.read(int(self.headers["content-length"])))

        def answer(self, body):
            asked.append((self.command, self.path, body))
            status, text = said.get(self.path, (404, {"error": "not here", "code": "not_found"}))
            data = json.dumps(text).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked, said
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def bodies():
    """Return the answers of a service: a decision, a possible decision, a list."""
    with Api() as api:
        api.post("/workers", worker_body(1, data_parallel_size=2))
        api.post("/select_and_reserve", {**PROMPT, "reservation_id": "a/b"})
        api.post("/select_and_reserve", {**PROMPT, "reservation_id": "c"})
        return {
            "/decisions/a%2Fb": (200, api.get("/decisions/a%2Fb").body),
            "/decisions/c": (200, api.get("/decisions/c").body),
            "/explain": (200, api.post("/explain", PROMPT).body),
            "/decisions?limit=20": (200, api.get("/decisions?limit=20").body),
        }


def test_a_decision_is_shown_as_a_table(answers, bodies, capsys):
    url, asked, said = answers
    said.update(bodies)
    assert main(["explain", "c", "--url", url + "/"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("decision 2, ")
    assert lines[0].endswith(" s ago, booked: m, tenant default, policy work")
    assert lines[1].startswith("prompt: 34 tokens, 8 blocks of 4, hash ")
    assert lines[2].endswith(" of 2 candidates: lowest cost")
    assert lines[4].split()[:2] == ["rank", "requests"]
    assert lines[4].split()[-1] == "cost"
    chosen, other = lines[5:]
    assert chosen.split()[0] == "*"
    assert float(chosen.split()[-1]) < float(other.split()[-1])
    assert asked == [("GET", "/decisions/c", b"")]


@pytest.mark.parametrize("name", ["speed", "weight"])
def test_speeds_and_weights_are_shown_where_they_are_not_all_1(name, answers, bodies, capsys):
    url, _, said = answers
    said.update(bodies)
    for path, value in (("/decisions/c", 1.0), ("/decisions/a%2Fb", 1.5)):
        status, body = bodies[path]
        first, other = body["candidates"]
        said[path] = status, body | {"candidates": [first | {name: value}, other]}
    assert main(["explain", "c", "--url", url]) == 0
    assert name not in capsys.readouterr().out
    assert main(["explain", "a/b", "--url", url]) == 0
    head, first, other = (line.split() for line in capsys.readouterr().out.splitlines()[4:])
    assert [line[head.index(name) - len(head)] for line in (first, other)] == ["1.5", "1.0"]


def test_credit_for_a_shared_cache_has_a_column(answers, bodies, capsys):
    url, _, said = answers
    status, body = bodies["/decisions/c"]
    first, other = body["candidates"]
    said["/decisions/c"] = (
        status,
        body | {"candidates": [first | {"shared_credit_tokens": 299}, other]},
    )
    assert main(["explain", "c", "--url", url]) == 0
    head, first, other = (line.split() for line in capsys.readouterr().out.splitlines()[4:])
    assert [line[head.index("shared") - len(head)] for line in (first, other)] == ["299", "0"]


def test_too_few_reports_are_shown_where_the_policy_depends_on_them(answers, bodies, capsys):
    url, _, said = answers
    status, body = bodies["/decisions/c"]
    for policy, share, told in (("work", 0.125, 1), ("work", 0.5, 0), ("reference", 0.125, 0)):
        said["/decisions/c"] = status, {**body, "policy": policy, "reported_share": share}
        assert main(["explain", "c", "--url", url]) == 0
        assert capsys.readouterr().out.count("callers reported the end of 12% of") == told


def test_ids_are_quoted(answers, bodies, capsys):
    url, _, said = answers
    said.update(bodies)
    assert main(["explain", "a/b", "--url", url]) == 0
    assert "random choice among ranks of the lowest cost" in capsys.readouterr().out


def test_a_request_is_sent_as_it_is(answers, bodies, capsys, tmp_path):
    url, asked, said = answers
    said.update(bodies)
    file = tmp_path / "body.json"
    file.write_text(json.dumps(PROMPT))
    assert main(["explain", "--request", str(file), "--url", url]) == 0
    assert asked == [("POST", "/explain", file.read_bytes())]
    assert capsys.readouterr().out.startswith("now: m, tenant default, policy ")


def test_without_an_id_the_last_decisions_are_listed(answers, bodies, capsys):
    url, _, said = answers
    said.update(bodies)
    assert main(["explain", "--url", url]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "decision"
    assert [row.split()[2] for row in rows] == ["c", "a/b"]


def test_refusals_and_faults_end_with_one_line(answers, capsys, tmp_path):
    url, *_ = answers
    assert main(["explain", "nobody", "--url", url]) == 1
    assert capsys.readouterr().err == f"select-service: error: {url}: not here\n"
    assert main(["explain", "--request", str(tmp_path / "none"), "--url", url]) == 2
    assert capsys.readouterr().err.endswith("none` cannot be read: No such file or directory\n")
    assert main(["explain", "--url", "nonsense"]) == 2
    assert "--url: expected an http or https URL" in capsys.readouterr().err
    (tmp_path / "body.json").write_text("{}")
    assert main(["explain", "a", "--request", str(tmp_path / "body.json"), "--url", url]) == 2
    assert "an ID and --request cannot be given together" in capsys.readouterr().err


def test_an_empty_request_is_refused_as_empty(capsys, tmp_path):
    (tmp_path / "empty.json").write_bytes(b"")
    with InThread() as service:
        words = ["explain", "--request", str(tmp_path / "empty.json")]
        assert main([*words, "--url", f"http://127.0.0.1:{service.port}"]) == 1
    assert "the request body is empty" in capsys.readouterr().err


def test_an_empty_list_of_decisions_is_reported(answers, capsys):
    url, _, said = answers
    said["/decisions?limit=20"] = 200, {"decisions": []}
    assert main(["explain", "--url", url]) == 0
    assert capsys.readouterr().out.startswith("no decisions recorded: ")


class Strange(BaseHTTPRequestHandler):
    """Server that is no selector; the class has the answer."""

    status, body = 200, b"hello"

    def do_GET(self):
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        """Log nothing."""


def strange_answer(status, body, *argv):
    """Return the exit status after an answer of a server that is no selector."""
    kind = type("Kind", (Strange,), {"status": status, "body": body})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            return main(["explain", *argv, "--url", f"http://127.0.0.1:{server.server_port}"])
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b"hello", "the response is not from a select-service: give another --url"),
        (200, b"[]", "the response is not a decision: give another --url"),
        (200, b'{"a": 1}', "the response is not a decision: give another --url"),
        (404, b"nginx", "HTTP status 404, not from a select-service: check --url"),
        (401, b'{"error": "a key is needed"}', "API key required: give --api-key-file FILE"),
        (403, b'{"error": "the key may not"}', "the key may not"),
    ],
)
def test_an_unusable_server_is_reported_with_advice(capsys, status, body, told):
    assert strange_answer(status, body) == 1
    assert capsys.readouterr().err.endswith(f": {told}\n")


def test_an_unknown_key_is_reported_by_its_file(capsys, tmp_path):
    key = tmp_path / "key"
    key.write_text("ssk_x")
    assert strange_answer(401, b"{}", "--api-key-file", str(key)) == 1
    assert f"unknown API key in `{key}`" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "doctor"])
def test_a_refused_connection_is_reported_with_advice(capsys, command):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert main([command, "--url", url]) == (2 if command == "doctor" else 1)
    told = "connection refused: start the service, or give another --url"
    assert capsys.readouterr().err == f"select-service: error: {url}: {told}\n"


def test_a_server_without_http_is_reported(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def greet():
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH_9\r\n")

        greeting = threading.Thread(target=greet)
        greeting.start()
        assert main(["explain", "--url", url]) == 1
        greeting.join()
    assert "the response is not from a select-service" in capsys.readouterr().err


@pytest.mark.parametrize("local", ["never", "always"])
def test_a_pair_is_shown_with_both_legs(answers, tmp_path, capsys, local):
    file = tmp_path / "body.json"
    url, _, said = answers
    with Api() as api:
        for worker_id, role in ((1, "prefill"), (2, "decode")):
            api.post("/workers", worker_body(worker_id, role=role))
        body = {**PROMPT, "local": local, "reservation_id": "p"}
        assert api.post("/select_pair_and_reserve", body).status == 200
        said |= {
            "/decisions?limit=20": (200, api.get("/decisions").body),
            "/decisions/p": (200, api.get("/decisions/p").body),
            "/explain": (200, api.post("/explain", {**PROMPT, "pair": True}).body),
        }
    file.write_text("{}")
    assert main(["explain", "--url", url]) == 0
    listed = capsys.readouterr().out
    assert main(["explain", "p", "--url", url]) == 0
    shown = capsys.readouterr().out
    assert main(["explain", "--request", str(file), "--url", url]) == 0
    assert capsys.readouterr().out.startswith("now: m, tenant default")
    place = "1/0 > 2/0" if local == "never" else "2/0"
    assert place in listed
    assert "pair 1" in listed
    assert shown.startswith("pair, ")
    if local == "never":
        assert "chosen: prefill on 1/0, decode on 2/0: the way of the request" in shown
    else:
        assert "chosen: 2/0 for both: the way of the request" in shown
    assert "cost of two ranks: " in shown
