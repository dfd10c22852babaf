"""Scenes of a killed engine with states that returns with an empty cache.

A scene fixes when the engine is killed and whether replays are answered. The scene also fixes the
batches of the second life before the service connects, and the events at the service meanwhile.
"""

import itertools
import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import NamedTuple

from tests.builders.launched_process import free_port
from tests.builders.polling import eventually
from tests.builders.recovery_scenes import KV, ScriptedPeer, a_peer_url, ended, head, raw_dump
from tests.builders.running import Running
from tests.indexer.events.test_recorded_groups import rows_of
from tests.models.recorded_cache import RecordedCache
from tests.process.recorded_engine import RecordedEngine

LIVES = "full_mamba", "tight_full_mamba"
"""Recordings of one layout, a dense and a state group, without common prompts."""
BLOCK_SIZE = 64
BATCHES = 36
"""Number of batches of the first life."""
LOST, TRICKLED = 3, 10
FEWER, MORE = 14, 55
"""Numbers of batches of the second life when the service connects."""
REST, HEARD = 12, 2
DOUBT_S = 1.5
"""Wait for batches that a rank without replays may not apply, seconds."""
PROMPTS = 16
"""Number of prompts compared per life."""


class KillScene(NamedTuple):
    """Scene of a kill.

    moment: the engine is killed `between` batches, `inside` them, or after `lost` batches
    has_replay: whether both lives answer replays
    returns: `fewer` or `more`: batches of the second life, compared with the first, at the query
    service: the service `runs`, restarts from a `snapshot`, or a new service starts from the dump
        of a `peer` or a `late_peer` (while the engine is killed)
    """

    moment: str
    has_replay: bool
    returns: str
    service: str

    def __str__(self):
        replay = "replay" if self.has_replay else "no_replay"
        return f"{self.moment}-{replay}-{self.returns}-{self.service}"


SCENES = [
    KillScene(*parts)
    for parts in itertools.product(
        ("between", "inside", "lost"),
        (True, False),
        ("fewer", "more"),
        ("runs", "snapshot", "peer", "late_peer"),
    )
]
EXACT, BOUND, FLAGGED = "exact", "at_most", "flagged"
"""Certainties of an answer; `flagged` means that the rank is `degraded` or `unverified`."""


class KillStage:
    """Run of one scene.

    counts: answers by certainty and by comparison with the engine's cache
    reused: tokens the engine would reuse, summed over the compared prompts
    """

    def __init__(self, scene: KillScene, folder):
        self.scene, self.counts, self.reused = scene, Counter(), 0
        self._port, self._replay_port = free_port(), free_port() if scene.has_replay else 0
        self._snapshot = ("--snapshot-path", str(folder / "index.snapshot"))
        self._prompts = [prompt for life in LIVES for prompt in prompts_of(life)]
        self._stack = ExitStack()

    def play(self):
        with self._stack:
            first = self._stack.enter_context(self._engine(LIVES[0]))
            service = self._stack.enter_context(Running(*self._snapshot, **KV))
            self._register(service)
            first.order("await")
            first.order("send", BATCHES)
            self._compare(service, first)
            service, second = self._kill_and_return(service, first)
            self._compare(service, second)
            if self.scene.has_replay:
                second.order("lose", LOST)
            second.order("send", REST)
            self._compare(service, second)

    def _kill_and_return(self, service, first):
        """Kill the engine and start the second life; return the queried service and new engine."""
        scene = self.scene
        if scene.service == "snapshot":
            self._kill(first)
            assert service.stop() == 0
            second = self._return()
            service = self._stack.enter_context(Running(*self._snapshot, **KV))
            ended(service)
            self._register(service)
        elif scene.service == "peer":
            self._kill(first)
            peer, service = service, self._begin_from(a_peer_url(service))
            ended(service)
            assert peer.stop() == 0
            second = self._return()
            self._register(service)
        elif scene.service == "late_peer":
            dump = bytes(raw_dump(service, "application/msgpack"))
            assert service.stop() == 0
            is_due = threading.Event()
            self._stack.callback(is_due.set)
            peer = self._stack.enter_context(ScriptedPeer(answers_late(dump, is_due)))
            service = self._begin_from(peer.url)
            self._register(service)
            self._kill(first)
            second = self._return()
            is_due.set()
            ended(service)
        else:
            self._kill(first)
            second = self._return()
        second.order("await")
        # Without a replay a single sequence number that steps back does not yet prove a new life.
        second.order("send", HEARD)
        return service, second

    def _kill(self, engine):
        if self.scene.moment == "lost":
            engine.order("lose", LOST)
        elif self.scene.moment == "inside":
            engine.order("trickle", TRICKLED)
        engine.kill()

    def _return(self):
        """Start the second life on the same ports."""
        engine = self._stack.enter_context(self._engine(LIVES[1]))
        engine.order("send", (FEWER if self.scene.returns == "fewer" else MORE) - HEARD)
        return engine

    def _engine(self, recording):
        return RecordedEngine(recording, self._port, self._replay_port)

    def _begin_from(self, url):
        return self._stack.enter_context(Running("--indexer-peers", url, **KV))

    def _register(self, service):
        body = {
            "worker_id": 1,
            "model_name": "m",
            "endpoint": "http://127.0.0.1:1",
            "block_size": BLOCK_SIZE,
            "kv_events_endpoint": f"tcp://127.0.0.1:{self._port}",
        }
        if self.scene.has_replay:
            body["replay_endpoint"] = f"tcp://127.0.0.1:{self._replay_port}"
        assert service.call("POST", "/workers", body).status == 201

    def _compare(self, service, engine):
        """Compare answers with the engine's cache after the service has read all batches."""
        doubtful_at = time.monotonic() + DOUBT_S

        def has_settled():
            status = status_of(service)
            is_sure = status["state"] == "connected"
            if status["last_sequence"] == engine.last_seq:
                return is_sure or not self.scene.has_replay
            # Batches of a life that cannot be distinguished from the former life are not applied.
            return not (is_sure or self.scene.has_replay) and time.monotonic() > doubtful_at

        eventually(has_settled)
        rows = rows_of(engine.recording)
        cache = RecordedCache(next(rows))
        for batch in engine.batches[: engine.published]:
            cache.apply(batch[1])
        self._compare_with(service, cache)

    def _compare_with(self, service, cache):
        is_flagged = status_of(service)["state"] != "connected"
        for prompt in self._prompts:
            truth = cache.reusable(prompt)
            query = {"model_name": "m", "token_ids": prompt}
            (row,) = service.call("POST", "/overlap_scores", query).body["workers"]
            # A rank without events has no groups yet, as a plain rank.
            tokens = row.get("reusable_tokens", row["device_blocks"] * BLOCK_SIZE)
            certainty = row.get("certainty", FLAGGED if is_flagged else EXACT)
            kind = "right" if tokens == truth else "over" if tokens > truth else "under"
            self.counts[certainty, kind] += 1
            self.reused += truth


def status_of(service):
    return service.call("GET", "/workers/1").body["kv_events"]["0"]


def prompts_of(recording):
    """Return the longest prompts of a recording."""
    prompts = [row["tokens"] for row in rows_of(recording) if "reused" in row]
    return sorted(prompts, key=len)[-PROMPTS:]


def answers_late(body, is_due):
    """Return a handler that sends a peer's answer after `is_due` is set."""

    def talk(connection, stop):
        while not is_due.wait(0.02) and not stop.is_set():
            pass
        connection.sendall(head(kind=b"application/msgpack") + body)

    return talk
