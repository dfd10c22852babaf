"""Event side of an engine, over real sockets."""

import threading
from collections import deque

import msgspec
import numpy as np
import zmq
from zmq.auth.thread import ThreadAuthenticator

from indexer.hashing.block_hashing import compute_block_hashes
from tests.builders.launched_process import free_port
from tests.builders.polling import PATIENCE_S

BLOCK_SIZE = 4
END = [b"", b"\xff" * 8, b""]


def encode(*events, rank=None):
    return msgspec.msgpack.encode([1.5, list(events), rank])


class Chain:
    """One prompt with a block per batch; engine hashes are derived from `salt` and the position."""

    def __init__(self, salt=1):
        self.salt = salt

    def tokens(self, block):
        return [self.salt * 1_000_003 + block * BLOCK_SIZE + i for i in range(BLOCK_SIZE)]

    def engine_hash(self, block):
        return self.salt * 10**9 + block

    def stored(self, block, n_blocks=1):
        blocks = range(block, block + n_blocks)
        return [
            "BlockStored",
            [self.engine_hash(each) for each in blocks],
            self.engine_hash(block - 1) if block else None,
            [token for each in blocks for token in self.tokens(each)],
            BLOCK_SIZE,
            None,
            "GPU",
        ]

    def path(self, n_blocks):
        tokens = [token for block in range(n_blocks) for token in self.tokens(block)]
        return compute_block_hashes(np.array(tokens, np.uint32), BLOCK_SIZE)


class _PermittedKeys:
    def __init__(self, keys):
        self._keys = keys

    def callback(self, domain, key):
        return key in self._keys


def _letting_in(context, keys):
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback("*", _PermittedKeys(keys))
    return authenticator


class FakeEngine:
    """Engine that publishes numbered batches and answers replays, unless a test overrides answers.

    answer: function from (start, ring) to the lists of frames after the identity; None means the
        real protocol
    past: events published, one per batch, before any subscriber can connect
    pair: key pair of the CURVE sockets
    known: public keys that may subscribe; None means any
    """

    def __init__(
        self,
        *,
        port=None,
        replay=True,
        answer=None,
        topic=False,
        ring_max=10**6,
        replay_port=None,
        past=(),
        pair=None,
        known=None,
    ):
        self.ring = deque(((seq, encode(event)) for seq, event in enumerate(past)), ring_max)
        self.next_seq = len(past)
        self.context, self._to_pair = zmq.Context(), pair
        self._authenticator = None if known is None else _letting_in(self.context, known)
        self.pub = self.context.socket(zmq.XPUB)
        self.pub.set_hwm(0)
        self.endpoint = self._bind(self.pub, port)
        self.requests = []
        self.replay_endpoint = None
        self._answer = answer or (self._answer_with_topic if topic else self._answer_plainly)
        self._stop = threading.Event()
        self._server_keys = threading.Thread(target=self._serve, daemon=True)
        if replay:
            self._router = self.context.socket(zmq.ROUTER)
            self._router.set_hwm(0)
            self.replay_endpoint = self._bind(self._router, replay_port)
            self._server_keys.start()

    def _bind(self, socket, port):
        socket.linger = 0
        if self._to_pair is not None:
            socket.curve_server, socket.curve_secretkey = True, self._to_pair.secret
        endpoint = f"tcp://127.0.0.1:{port or free_port()}"
        socket.bind(endpoint)
        return endpoint

    @property
    def port(self):
        return int(self.endpoint.rpartition(":")[2])

    def await_subscriber(self):
        """Wait for a subscriber; the socket reports only the first of several subscriptions."""
        assert self.pub.poll(PATIENCE_S * 1000)
        assert self.pub.recv() == b"\x01"

    def await_no_subscriber(self):
        """Wait until the last subscriber has left."""
        assert self.pub.poll(PATIENCE_S * 1000)
        assert self.pub.recv() == b"\x00"

    def publish(self, *events, rank=None, lost=False, seq=None):
        """Number a batch, keep the batch for replays and, unless `lost`, send it."""
        payload = encode(*events, rank=rank)
        seq = self.next_seq if seq is None else seq
        self.next_seq = seq + 1
        self.ring.append((seq, payload))
        if not lost:
            self.send([b"kv", seq.to_bytes(8, "big"), payload])

    def send(self, frames):
        self.pub.send_multipart(frames)

    def close(self):
        self._stop.set()
        if self._server_keys.is_alive():
            self._server_keys.join()
        if self._authenticator is not None:
            self._authenticator.stop()
        self.context.destroy(linger=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _serve(self):
        while not self._stop.is_set():
            if not self._router.poll(20):
                continue
            identity, delimiter, start = self._router.recv_multipart()
            assert delimiter == b""
            self.requests.append(int.from_bytes(start, "big"))
            for frames in self._answer(self.requests[-1], list(self.ring)):
                if self._stop.is_set():
                    return
                self._router.send_multipart([identity, *frames])

    @staticmethod
    def _answer_plainly(start, ring):
        yield from ([b"", seq.to_bytes(8, "big"), what] for seq, what in ring if seq >= start)
        yield END

    @staticmethod
    def _answer_with_topic(start, ring):
        yield from (
            [b"", b"kv", seq.to_bytes(8, "big"), what] for seq, what in ring if seq >= start
        )
        yield [b"", b"", b"\xff" * 8, b""]
