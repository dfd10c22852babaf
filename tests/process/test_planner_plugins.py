"""Tests of plugins of a running planner: their decisions, and that no plugin stops the planner."""

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest

from select_service.planner.plugins.grpc_plugin import SERVICE, load_messages
from tests.builders import worker_body
from tests.builders.certificates import authority
from tests.builders.polling import eventually
from tests.process.planned_fleet import Selector
from tests.process.planner_process import Planner

pytestmark = pytest.mark.process
message = load_messages()


class Bounds(BaseHTTPRequestHandler):
    """An HTTP plugin with an answer that a test changes."""

    answer: ClassVar[bytes] = b"{}"
    stages: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.stages.add(body["stage"])
        self._send(self.answer)

    def do_GET(self) -> None:
        self._send(b"ok")

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Discard the log line."""


@contextmanager
def http_plugin() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bounds)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def grpc_server(answer: Any, certificate: Any = None) -> tuple[grpc.Server, str]:
    """Return a started server on localhost and its URL; a certificate switches TLS on."""
    handler = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=message("PluginContext").FromString,
        response_serializer=lambda given: given.SerializeToString(),
    )
    server = grpc.server(ThreadPoolExecutor(4))
    handlers = grpc.method_handlers_generic_handler(SERVICE.strip("/"), {"Propose": handler})
    server.add_generic_rpc_handlers((handlers,))
    if certificate is None:
        port = server.add_insecure_port("127.0.0.1:0")
        url = f"grpc://127.0.0.1:{port}"
    else:
        pair = (certificate.key.read_bytes(), certificate.certificate.read_bytes())
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        url = f"grpcs://localhost:{port}"
    server.start()
    return server, url


def a_config(selector: Selector, *plugins: dict[str, Any], **top: Any) -> dict[str, Any]:
    deployment = {
        "name": "fleet",
        "model_name": "m",
        "mode": "agg",
        "optimization_target": "load",
        "load_adjustment_interval_seconds": 0.5,
        "down_window_s": 1,
        "down_cooldown_s": 0.5,
        "min_endpoint": 2,
        "max_gpu_budget": 6,
        "decode_limits": {"max_kv_tokens": 100_000},
        "connector": {"kind": "virtual"},
    }
    return {
        "selectors": [selector.url],
        "deployments": [deployment],
        "plugins": list(plugins),
        **top,
    }


def outcomes(planner: Planner) -> dict[str, str]:
    return {each["plugin"]: each["outcome"] for each in planner.status()["plugins"]}


def test_plugins_decide_and_cannot_stop_the_planner(tmp_path: Path) -> None:
    def hang(context: Any, call: Any) -> Any:
        time.sleep(1.0)
        return message("ReplicaTargets")()

    selector = Selector(tmp_path)
    for worker_id in (1, 2):
        assert selector.call("POST", "/workers", worker_body(worker_id)).status < 300
    server, url = grpc_server(hang)
    module = "tests.builders.planner_plugins"
    with selector.process, http_plugin() as bounds:
        floor = {"component": "decode", "type": "AT_LEAST", "replicas": 4}
        Bounds.answer = json.dumps({"targets": [floor], "reason": "rush hour"}).encode()
        config = a_config(
            selector,
            {"name": "rush", "stage": "constrain", "url": bounds, "heartbeat_s": 1},
            {"name": "slow", "stage": "propose", "url": url, "timeout_s": 0.1},
            {"name": "stuck", "stage": "propose", "class": f"{module}:Hangs", "timeout_s": 0.1},
            {"name": "liar", "stage": "constrain", "class": f"{module}:InvalidTargets"},
        )
        with Planner(tmp_path, config) as planner:
            eventually(lambda: planner.get("/v1/decision")["num_decode"] == 4)
            assert outcomes(planner).keys() == {"rush", "slow", "stuck", "liar"}
            status = planner.status()
            assert status["replicas"]["decode"]["decided_by"] == "rush"
            texts = {each["plugin"]: each.get("text") for each in status["plugins"]}
            assert texts["rush"] == "rush hour"
            eventually(lambda: outcomes(planner)["slow"] == "paused")
            eventually(lambda: outcomes(planner)["stuck"] == "busy")
            eventually(lambda: outcomes(planner)["liar"] == "paused")
            # An answer without limits stays within the budget of 6 GPUs.
            Bounds.answer = Bounds.answer.replace(b": 4", b": 900000")
            eventually(lambda: planner.get("/v1/decision")["num_decode"] == 6)
            Bounds.answer = b"[" * 70_000
            eventually(lambda: outcomes(planner)["rush"] in ("invalid", "paused"))
            assert planner.ticks_on(4)["faults"] == {}
            with urllib.request.urlopen(f"http://127.0.0.1:{planner.port}/metrics") as answer:
                metrics = answer.read().decode()
            assert 'plugin="stuck",stage="propose"' in metrics
            began = time.monotonic()
            assert planner.process.stop_with_signal()[0] == 0
            assert time.monotonic() - began < 10.0
    server.stop(None)
    assert Bounds.stages == {"constrain"}


def test_a_grpc_plugin_over_tls(tmp_path: Path) -> None:
    def propose(context: Any, call: Any) -> Any:
        answer = message("ReplicaTargets")(reason="plan")
        answer.targets.add(component="decode", type="SET", replicas=3)
        return answer

    selector = Selector(tmp_path)
    for worker_id in (1, 2):
        assert selector.call("POST", "/workers", worker_body(worker_id)).status < 300
    server, url = grpc_server(propose, authority().issue())
    plugin = {"name": "plan", "stage": "propose", "url": url}
    with selector.process:
        config = a_config(selector, plugin, ca_file=str(authority().file))
        with Planner(tmp_path, config) as planner:
            eventually(lambda: planner.get("/v1/decision")["num_decode"] == 3)
            assert outcomes(planner) == {"plan": "answered"}
        other = a_config(selector, plugin)
        with Planner(tmp_path, other) as planner:  # an untrusted CA
            eventually(lambda: outcomes(planner).get("plan") == "failed")
    server.stop(None)
