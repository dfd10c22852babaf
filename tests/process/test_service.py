"""Tests of the command from start to signal, over real sockets."""

import contextlib
import signal
import socket
import time

import pytest

from tests.builders import worker_body
from tests.builders.polling import eventually
from tests.builders.running import Running, complaint, request, run_to_end

pytestmark = pytest.mark.process

STOP_S_MAX = 30.0
"""Time limit for the end, seconds, far below the 75 s for which an idle connection is kept."""
QUICK_S = 0.5
"""Half the time allowed for a request in flight, seconds."""
PROMPT = {"model_name": "m", "token_ids": list(range(10))}


PATHS = {"fast": (), "ordinary": ("--no-fast-path",)}


@pytest.fixture(scope="module", params=PATHS.values(), ids=PATHS)
def service(request):
    """Yield one service for all client faults; assert that its log has no warnings."""
    with Running("--threads", "1", *request.param) as running:
        assert running.call("POST", "/workers", worker_body(1)).status == 201
        yield running
        assert running.stop() == 0
        assert {line["level"] for line in running.log()} == {"INFO"}


def test_the_first_log_lines_have_the_address_and_the_configuration():
    peers = "http://127.0.0.1:1,http://127.0.0.1:2"
    arguments = ("--threads", "2", "--strict-fields", "--indexer-peers", peers)
    with Running(*arguments, DYN_ROUTER_TEMPERATURE="0.5") as running:
        assert running.line("listening")["host"] == "127.0.0.1"
        configuration = running.line("configuration")
        assert configuration["threads"] == "2 (command line)"
        assert configuration["strict-fields"] == "true (command line)"
        assert configuration["indexer-peers"] == f"{peers} (command line)"
        shown = configuration["DYN_ROUTER_TEMPERATURE"]
        assert shown == "0.5 (environment DYN_ROUTER_TEMPERATURE)"
        assert configuration["others"] == "defaults, see GET /config"
        assert "policy" not in configuration


def test_a_port_in_use_is_one_line_and_exit_status_2(service):
    arguments = ("--host", "127.0.0.1", "--port", str(service.port))
    status, output, errors = run_to_end(*arguments)
    assert (status, output) == (2, "")
    assert complaint(errors).startswith(f"cannot listen on 127.0.0.1:{service.port}: ")


@pytest.mark.parametrize(
    ("arguments", "environment", "named"),
    [
        (("--port", "x"), {}, "--port"),
        (("--nope",), {}, "--nope"),
        (("--indexer-peers", "tcp://b:8092"), {}, "--indexer-peers"),
        ((), {"SELECT_SERVICE_THREADS": "0"}, "SELECT_SERVICE_THREADS"),
        ((), {"DYN_ROUTER_TEMPERATURE": "nan"}, "DYN_ROUTER_TEMPERATURE"),
        ((), {"DYN_ROUTER_QUEUE_THRESHOLD": "-1"}, "DYN_ROUTER_QUEUE_THRESHOLD"),
        ((), {"DYN_ROUTER_POLICY_CONFIG": "nowhere.yaml"}, "policy file nowhere.yaml"),
        (("--priority-default-tier", "gold"), {}, "--priority-default-tier"),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_line_and_exit_status_2(arguments, environment, named):
    status, output, errors = run_to_end(*arguments, **environment)
    assert (status, output) == (2, "")
    assert named in complaint(errors)


@pytest.mark.parametrize(
    ("flag", "told"), [("--help", "--threads"), ("--version", "select-service ")]
)
def test_questions_about_the_command_are_answered_with_status_0(flag, told):
    status, output, errors = run_to_end(flag)
    assert (status, errors) == (0, "")
    assert told in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_time_even_with_idle_connections(number):
    with Running() as running, running.client() as fresh, running.client() as used:
        used.send(request("GET", "/health"))
        assert used.answer().status == 200
        begin = time.monotonic()
        assert running.stop(number) == 0
        assert time.monotonic() - begin < STOP_S_MAX
        assert fresh.ended()
        assert used.ended()
        assert running.log()[-1]["message"] == "stopped"


def test_a_request_in_flight_is_answered_before_the_end():
    """Repeat the scene if this process was too slow for the time limit."""
    eventually(a_request_in_flight_is_answered)


def a_request_in_flight_is_answered():
    with Running() as running, running.client() as client:
        assert running.call("POST", "/workers", worker_body(1)).status == 201
        whole = request("POST", "/select_and_reserve", PROMPT)
        client.send(whole[:-5])
        assert running.call("GET", "/health").status == 200
        begin = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        eventually(lambda: not accepts(running.port))
        status = status_after(client, whole[-5:])
        if time.monotonic() - begin > QUICK_S:
            return False
        assert status == 200
        assert running.process.wait(STOP_S_MAX) == 0
        return True


def status_after(client, rest):
    """Send the rest of a request and return the answer's status, or None without an answer."""
    with contextlib.suppress(EOFError, ConnectionError):
        client.send(rest)
        return client.answer().status
    return None


def accepts(port):
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_an_endless_request_does_not_delay_the_end():
    with Running() as running, running.client() as client:
        client.send(request("POST", "/select", PROMPT)[:-5])
        assert running.call("GET", "/health").status == 200
        begin = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - begin < STOP_S_MAX
        answer = client.answer()
        assert (answer.status, answer.body["code"]) == (503, "shutting_down")
        assert not any("exception" in line for line in running.log())


def test_a_reservation_without_renewals_expires_and_is_logged():
    with Running("--reservation-ttl-secs", "0.5") as running:
        running.call("POST", "/workers", worker_body(1))
        body = {**PROMPT, "reservation_id": "left behind"}
        assert running.call("POST", "/select_and_reserve", body).status == 200
        line = running.line("reservations expired")
        assert line["reservation_ids"] == ["left behind"]
        assert running.call("GET", "/reservations").body["total"] == 0
        (partition,) = running.call("GET", "/loads").body
        assert [rank["active_requests"] for rank in partition["loads"]] == [0]


def test_answers_to_pipelined_requests_come_in_order(service):
    with service.client() as client:
        client.send(
            request("POST", "/select", {**PROMPT, "selection_id": "a"})
            + request("GET", "/nope")
            + request("POST", "/select", {**PROMPT, "selection_id": "b"})
        )
        answers = [client.answer() for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 404, 200]
    assert (answers[0].body["selection_id"], answers[2].body["selection_id"]) == ("a", "b")


def test_a_chunked_body_is_read(service):
    head = request("POST", "/select", None, transfer_encoding="chunked")
    with service.client() as client:
        client.send(head + b'10\r\n{"model_name":"m\r\n14\r\n","token_ids":[1,2]}\r\n0\r\n\r\n')
        assert client.answer().status == 200


OFFER = {"upgrade": "h2c", "http2_settings": "AAMAAABk", "connection": "Upgrade, HTTP2-Settings"}


@pytest.mark.parametrize("at_once", [True, False])
def test_a_request_that_offers_another_protocol_is_answered_in_this_one(service, at_once):
    offered = request("POST", "/select", {**PROMPT, "selection_id": "a"}, **OFFER)
    sent = offered + offered.replace(b'"a"', b'"b"') + request("GET", "/health", **OFFER)
    with service.client() as client:
        for piece in [sent] if at_once else [sent[i : i + 7] for i in range(0, len(sent), 7)]:
            client.send(piece)
        assert [client.answer().body["selection_id"] for _ in range(2)] == ["a", "b"]
        assert client.answer().body == {"status": "ok"}


def test_an_upgrade_offer_with_connection_close_is_closed(service):
    fields = OFFER | {"connection": "close, Upgrade"}
    with service.client() as client:
        client.send(request("POST", "/select", PROMPT, **fields))
        assert client.answer().status == 200
        assert client.ended()


def test_http_1_0_is_answered_and_closed(service):
    with service.client() as client:
        client.send(b"GET /health HTTP/1.0\r\n\r\n")
        assert client.answer().body == {"status": "ok"}
        assert client.ended()


def test_expect_continue_is_honoured(service):
    whole = request("POST", "/select", PROMPT, expect="100-continue")
    head, body = whole.split(b"\r\n\r\n", 1)
    with service.client() as client:
        client.send(head + b"\r\n\r\n")
        assert client.answer().status == 100
        client.send(body)
        assert client.answer().status == 200


def test_answers_have_a_date_and_no_server_header(service):
    headers = service.call("GET", "/health").headers
    assert "date" in headers
    assert "server" not in headers


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /select HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST /select HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\n\r\n",
    ],
    ids=lambda garbage: repr(garbage[:24]),
)
def test_bytes_that_are_not_http_get_a_json_error_and_a_close(service, garbage):
    with service.client() as client:
        client.send(garbage)
        answer = client.answer()
        assert answer.status == 400
        assert answer.body["code"] == "malformed_http"
        assert client.ended()


def test_an_endless_head_is_refused(service):
    with service.client() as client, contextlib.suppress(ConnectionError):
        client.send(b"GET /health HTTP/1.1\r\n")
        for _ in range(5000):
            client.send(b"x-filler: " + b"y" * 100 + b"\r\n")
        answer = client.answer()
        assert (answer.status, answer.body["code"]) == (431, "head_too_large")


def test_a_body_of_8_mib_and_one_byte_is_refused_and_the_next_request_answered(service):
    with service.client() as client:
        client.send(request("POST", "/select", b"[" * (8 * 1024 * 1024 + 1)))
        answer = client.answer()
        assert (answer.status, answer.body["code"]) == (413, "body_too_large")
        client.send(request("GET", "/health"))
        assert client.answer().status == 200


def test_an_endless_chunked_body_is_refused(service):
    with service.client() as client, contextlib.suppress(ConnectionError):
        client.send(request("POST", "/select", None, transfer_encoding="chunked"))
        chunk = b"100000\r\n" + b"1" * 0x100000 + b"\r\n"
        for _ in range(9):
            client.send(chunk)
        assert client.answer().status == 413


def test_slow_and_half_closed_clients_do_not_delay_others(service):
    whole = request("POST", "/select", PROMPT)
    with contextlib.ExitStack() as stack:
        for i in range(300):
            client = stack.enter_context(service.client())
            client.send(whole[: i % len(whole)])
            if i % 3 == 0:
                client.socket.shutdown(1)
        assert service.call("POST", "/select", PROMPT).status == 200


def test_clients_that_do_not_wait_for_their_answer_leave_nothing_behind(service):
    body = {**PROMPT, "reservation_id": "gone"}
    for _ in range(20):
        with service.client() as client:
            client.send(request("POST", "/select_and_reserve", body))
        service.call("DELETE", "/reservations/gone")
    assert service.call("GET", "/reservations").body["total"] <= 1
    service.call("DELETE", "/reservations/gone")
    assert service.call("GET", "/health").status == 200
