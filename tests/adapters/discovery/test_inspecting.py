"""Tests of `select-service inspect`."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from select_service.__main__ import main
from select_service.core.registry.discovery.engine_facts import INFO, METRICS, MODELS
from select_service.core.registry.discovery.worker_records import validate_record
from tests.adapters.discovery.engines import engine


@pytest.fixture
def serve_engine():
    """Yield a function that starts an engine on a separate thread and returns the URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    opened = []

    def serve(*args):
        context = engine(*args)
        _, url = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(30)
        opened.append(context)
        return url

    yield serve
    for context in opened:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def run_inspect(capsys, *argv):
    status = main(["inspect", *argv])
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.mark.parametrize("name", ["vllm-0.33.0-2", "sglang-0.5.23-1"])
def test_the_record_is_ready_to_be_posted(capsys, serve_engine, name):
    url = serve_engine(name)
    status, out, err = run_inspect(capsys, url, "--worker-id", "7")
    record = validate_record(json.loads(out))
    assert (status, record.worker_id, record.model_name) == (0, 7, "qwen")
    assert "adapters, for lora_name of requests: sql, chat" in err


def test_missing_fields_are_reported_by_name(capsys, serve_engine):
    status, out, err = run_inspect(capsys, serve_engine("vllm-0.33.0-1", (INFO,)))
    assert status == 1
    assert json.loads(out)["block_size"] == 16
    assert "missing: kv_events_endpoint: --kv-events-config names no" in err


def test_an_unreachable_engine_and_an_invalid_url(capsys):
    status, out, err = run_inspect(capsys, "http://127.0.0.1:1")
    assert (status, out) == (1, "")
    assert "cannot connect to 127.0.0.1:1" in err
    assert run_inspect(capsys, "ftp://x")[0] == 2


def test_other_servers_give_no_record(capsys, serve_engine):
    status, out, err = run_inspect(capsys, serve_engine("vllm-0.33.0-1", (MODELS, METRICS, INFO)))
    assert (status, out) == (1, "")
    assert "is an engine running there?" in err
    with ThreadingHTTPServer(("127.0.0.1", 0), Anything) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        status, out, err = run_inspect(capsys, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert (status, out) == (1, "")
    assert "the answers match neither vLLM nor SGLang; give another URL" in err


class Anything(BaseHTTPRequestHandler):
    """A server that answers 200 to everything, as the start page of a proxy does."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")

    def log_message(self, *_):
        """Discard the log line."""
