"""An engine with HTTP, events and replays over real sockets, with a choice of faults."""

import contextlib
import json
import socket
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time

import msgspec

from tests.builders.launched_process import free_port
from tests.process.fake_engine import FakeEngine

BLOCK_SIZE = 4
MODEL = "m"


class SickEngine:
    """Engine with a chosen fault.

    block_size: actual block size, tokens
    clock_s: offset of the engine's clock, seconds ahead
    is_silent: whether the engine answers prompts without publishing events
    lora_name: LoRA name of the published blocks
    """

    def __init__(self, *, block_size=BLOCK_SIZE, clock_s=0.0, is_silent=False, lora_name=None):
        self.block_size, self.clock_s = block_size, clock_s
        self.is_silent, self.lora_name = is_silent, lora_name
        self.zmq = FakeEngine()
        self.prompts = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        self._thread.start()

    def record(self, **fields):
        """Return the body for POST /workers."""
        known = {
            "worker_id": 1,
            "model_name": MODEL,
            "endpoint": self.url,
            "block_size": self.block_size,
            "kv_events_endpoint": self.zmq.endpoint,
            "replay_endpoint": self.zmq.replay_endpoint,
        }
        return {name: value for name, value in (known | fields).items() if value is not None}

    def store(self, tokens):
        """Publish the blocks of a computed prompt."""
        size = self.block_size
        n_blocks = len(tokens) // size
        names = [hash((tuple(tokens[: (n + 1) * size]), 7)) & (2**63 - 1) for n in range(n_blocks)]
        event = ["BlockStored", names, None, list(tokens[: n_blocks * size]), size, None, "GPU"]
        if self.lora_name is not None:
            event.append(self.lora_name)
        payload = msgspec.msgpack.encode([time() + self.clock_s, [event], None])
        engine = self.zmq
        engine.ring.append((engine.next_seq, payload))
        engine.send([b"kv", engine.next_seq.to_bytes(8, "big"), payload])
        engine.next_seq += 1

    def answer_request(self, path, body):
        """Return (content type, text) of the answer to a request."""
        if path.startswith("/v1/models"):
            cards = [{"id": MODEL, "owned_by": "vllm"}]
            return "application/json", json.dumps({"object": "list", "data": cards})
        if path.startswith("/metrics"):
            labels = f'block_size="{self.block_size}",engine="0",num_gpu_blocks="100"'
            return "text/plain", f"vllm:cache_config_info{{{labels}}} 1.0\n"
        if path.startswith("/v1/completions"):
            tokens = json.loads(body)["prompt"]
            self.prompts.append(tokens)
            if not self.is_silent:
                self.store(tokens)
            return "application/json", '{"choices": [{"text": "x"}]}'
        return ("text/plain", "") if path.startswith("/health") else None

    def close_http(self):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def close(self):
        if self._thread.is_alive():
            self.close_http()
        self.zmq.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _handler(engine):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._answer(b"")

        def do_POST(self):
            self._answer(self.rfile.read(int(self.headers["content-length"])))

        def _answer(self, body):
            found = engine.answer_request(self.path, body)
            kind, text = found or ("text/plain", "")
            self.send_response(200 if found else 404)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def date_time_string(self, timestamp=None):
            return formatdate(time() + engine.clock_s, usegmt=True)

        def log_message(self, *_):
            """Discard the log line."""

    return Handler


def closed_port():
    """Return an endpoint without a listening socket."""
    return f"tcp://127.0.0.1:{free_port()}"


@contextlib.contextmanager
def a_mute_port():
    """Yield the number of a port that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener.getsockname()[1]
