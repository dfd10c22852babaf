"""Services that recover, and peers as the source of the recovery."""

import http.client
import json
import socket
import threading

from tests.builders.launched_process import ANSWER_S_MAX
from tests.builders.polling import eventually

KV = {"DYN_USE_KV_EVENTS": "true"}


def register(service, worker_id, engine, model_name="m", **fields):
    body = {
        "worker_id": worker_id,
        "model_name": model_name,
        "endpoint": "http://w",
        "block_size": 4,
        "kv_events_endpoint": engine.endpoint,
        "replay_endpoint": engine.replay_endpoint,
    }
    assert service.call("POST", "/workers", body | fields).status == 201


def fill(service, engine, chain, n_blocks, model_name="m"):
    """Publish `n_blocks` blocks of worker 1 and wait until the service has these blocks."""
    engine.await_subscriber()
    for block in range(n_blocks):
        engine.publish(chain.stored(block))
    eventually(lambda: overlap(service, chain, n_blocks, model_name) == {1: n_blocks})


def overlap(service, chain, n_blocks, model_name="m"):
    tokens = [token for block in range(n_blocks) for token in chain.tokens(block)]
    body = {"model_name": model_name, "token_ids": tokens}
    answer = service.call("POST", "/overlap_scores", body)
    return {row["worker_id"]: row["device_blocks"] for row in answer.body["workers"]}


def dump(service):
    return json.loads(raw_dump(service, "application/json"))


def raw_dump(service, accept):
    """Return the body of a dump, read by a client that decodes chunked answers."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=ANSWER_S_MAX)
    connection.request("GET", "/dump", headers={"accept": accept})
    body = connection.getresponse().read()
    connection.close()
    return body


def recovery(service):
    return service.call("GET", "/ready").body["recovery"]


def ended(service):
    eventually(lambda: recovery(service)["state"] != "running")
    return recovery(service)


def a_peer_url(service):
    return f"http://127.0.0.1:{service.port}"


class ScriptedPeer:
    """Peer that answers every connection with `talk`."""

    def __init__(self, talk, port=0):
        self._talk = talk
        self._stop = threading.Event()
        self._server_keys = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._server_keys.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._server_keys.close()

    def _serve(self):
        while not self._stop.is_set():
            try:
                connection, _ = self._server_keys.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        try:
            connection.recv(65536)
            self._talk(connection, self._stop)
        except OSError:
            pass
        finally:
            connection.close()


def sends(data):
    return lambda connection, stop: connection.sendall(data)


def head(status=b"200 OK", kind=b"application/json", more=b""):
    return b"HTTP/1.1 " + status + b"\r\ncontent-type: " + kind + b"\r\n" + more + b"\r\n"


def stalls(connection, stop):
    stop.wait(60)


def drips(connection, stop):
    connection.sendall(head())
    while not stop.wait(0.5):
        connection.sendall(b" ")


def repeats(piece, begin=b""):
    def talk(connection, stop):
        connection.sendall(head() + begin)
        while not stop.is_set():
            connection.sendall(piece)

    return talk


GOOD = {
    "m:default": {
        "block_size": 4,
        "events": [
            {
                "worker_id": 1,
                "event": {"data": {"stored": {"blocks": [{"block_hash": 1, "tokens_hash": 2}]}}},
            }
        ],
    }
}
EVENT = json.dumps(GOOD["m:default"]["events"][0]).encode()
