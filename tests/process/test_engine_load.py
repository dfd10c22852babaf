"""Tests of the engine load that a service scrapes over HTTP, with a text recorded from vLLM."""

import http.server
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import worker_body
from tests.builders.engine_metric_texts import recorded
from tests.builders.polling import eventually
from tests.builders.running import Running
from tests.builders.waiting_clients import PROMPT, metric

pytestmark = pytest.mark.process

STALE_S = 3.0
FLAGS = (
    *("--engine-metrics-interval-secs", "0.1"),
    *("--engine-metrics-stale-secs", str(STALE_S)),
    *("--active-decode-blocks-threshold", "0.9"),
)
TEXT = recorded("vllm-0.33.0-1")
FRESH = "select_service_engine_ranks"


class Engine(http.server.ThreadingHTTPServer):
    """Server of /metrics as in vLLM, with the given use of the KV cache."""

    daemon_threads = True

    def __init__(self, usage: float) -> None:
        super().__init__(("127.0.0.1", 0), _Metrics)
        self.usage = usage
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/metrics"

    def text(self) -> bytes:
        line = rb"^(vllm:kv_cache_usage_perc\{[^}]*\}) .*$"
        text, found = re.subn(line, rb"\1 %r" % self.usage, TEXT, flags=re.MULTILINE)
        assert found == 1
        return text

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Engine)
        body = self.server.text()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Discard the log line."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    server = Engine(0.5)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with Running("--threads", "1", *FLAGS) as service:
        yield service


@pytest.fixture
def service(running: Running, engine: Engine) -> Running:
    body = worker_body(1, total_kv_blocks=100, metrics_endpoint=engine.url)
    assert running.call("POST", "/workers", body).status == 201
    return running


def engine_error(service: Running) -> str:
    """Return the reason why the last scrape failed."""
    (worker,) = service.call("GET", "/workers").body
    error: str = worker["admission"]["engine_error"]
    return error


def rank(service: Running) -> dict[str, Any]:
    """Return the only rank's load relative to the threshold."""
    (worker,) = service.call("GET", "/workers").body
    found: dict[str, Any] = worker["admission"]["ranks"]["0"]
    return found


def test_the_reported_cache_usage_makes_a_worker_busy_and_free_again(service, engine):
    eventually(lambda: rank(service)["source"] == "engine")
    assert service.call("POST", "/select", PROMPT).status == 200
    engine.usage = 0.95
    eventually(lambda: rank(service)["busy"])
    shown = rank(service)
    assert shown["kv_usage"] == 0.95
    told = {"fresh": True, "kv_usage": 0.95, "requests_waiting": 4, "requests_running": 7}
    assert told.items() <= shown["engine"].items()
    assert 0.0 <= shown["engine"]["age_s"] < STALE_S
    answer = service.call("POST", "/select", PROMPT)
    assert (answer.status, answer.body["type"]) == (503, "service_unavailable")
    assert metric(service, FRESH, state="fresh") == 1
    assert metric(service, "select_service_engine_kv_usage", worker_id="1") == 0.95
    assert (metric(service, "select_service_engine_scrapes_total", result="ok") or 0) > 0
    engine.usage = 0.2
    eventually(lambda: service.call("POST", "/select", PROMPT).status == 200)


def test_a_silent_engine_counts_for_a_while_and_then_the_bookings_do(service, engine):
    engine.usage = 0.95
    eventually(lambda: rank(service)["busy"])
    engine.stop()
    eventually(lambda: rank(service)["source"] == "accounting")
    shown = rank(service)
    assert (shown["busy"], shown["kv_usage"]) == (False, 0.0)
    assert shown["engine"]["fresh"] is False
    assert shown["engine"]["age_s"] >= STALE_S
    assert service.call("POST", "/select", PROMPT).status == 200
    eventually(lambda: "Connection refused" in engine_error(service))
    assert metric(service, FRESH, state="stale") == 1
    assert metric(service, "select_service_engine_kv_usage", worker_id="1") is None
    line = service.line("engine metrics scrape failed")
    assert (line["level"], line["worker_id"]) == ("WARNING", 1)
