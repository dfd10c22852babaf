"""Tests of some recorded engine streams over real sockets: live PUB, replay ROUTER, HTTP."""

import struct
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from tests.builders.launched_process import free_port
from tests.builders.polling import PATIENCE_S
from tests.builders.service_process import ServiceProcess
from tests.golden.recordings import Live, Place, Recording, Replay, Truth, load

pytestmark = pytest.mark.process

STREAMS = [
    f"{version}-{scenario}"
    for version in ("vllm-0.23.0", "vllm-0.33.0")
    for scenario in (
        "duplicates",
        "late_subscriber",
        "restart",
        "two_ranks_lost",
        "cpu_tier_hash_only",
        "salts_adapters_images",
    )
] + [
    f"sglang-0.5.23-{scenario}"
    for scenario in ("eviction", "late_subscriber", "salts_adapters", "eagle")
]
PORT_ATTEMPTS_MAX = 50


class RecordedEngine:
    """Sockets of a rank."""

    def __init__(self, context: zmq.Context[Any], replay_port: int) -> None:
        self.live = context.socket(zmq.XPUB)
        self.live.linger = 0
        self.live_port = self.live.bind_to_random_port("tcp://127.0.0.1")
        self.replay = context.socket(zmq.ROUTER)
        self.replay.linger = 0
        self.replay_port = replay_port
        self.replay.bind(f"tcp://127.0.0.1:{replay_port}")
        self.seen: dict[int, bytes] = {}

    def wait_for_subscriber(self) -> None:
        assert self.live.poll(PATIENCE_S * 1000), "nobody subscribes"
        assert self.live.recv() == b"\x01"

    def answer_that_nothing_was_published(self) -> None:
        """Answer the first request of a reader, which comes at the connection."""
        identity, start = self._request()
        assert start == 0
        self.replay.send_multipart([identity, b"", b"\xff" * 8, b""])

    def send(self, step: Live) -> None:
        self.seen[step.seq] = step.payload
        self.live.send_multipart([step.topic, struct.pack(">Q", step.seq), step.payload])

    def answer(self, step: Replay) -> None:
        """Serve the only request that the gap before must cause."""
        identity, start = self._request()
        assert start == max(0, step.first - 1)
        self.seen |= {int.from_bytes(frames[-2], "big"): frames[-1] for frames in step.answer}
        if start < step.first:  # recorded from a reader that requested the next message
            number = struct.pack(">Q", start)
            self.replay.send_multipart([identity, b"", number, self.seen[start]])
        for frames in step.answer:
            self.replay.send_multipart([identity, *frames])

    def _request(self) -> tuple[bytes, int]:
        assert self.replay.poll(PATIENCE_S * 1000), "no replay was asked for"
        identity, delimiter, first = self.replay.recv_multipart()
        assert delimiter == b""
        return identity, int.from_bytes(first, "big")

    def close(self) -> None:
        self.live.close()
        self.replay.close()


class Fleet:
    """Engines of a recording, registered under a separate model name."""

    def __init__(self, service: ServiceProcess, name: str, recording: Recording) -> None:
        self._service, self._model = service, name
        self._about = recording.about
        self._context: zmq.Context[Any] = zmq.Context()
        self._first_id = 100 * STREAMS.index(name)
        self._engines = {
            place: engine
            for worker_id in range(1, self._about["workers"] + 1)
            for place, engine in self._engines_of(worker_id).items()
        }
        for worker_id in range(1, self._about["workers"] + 1):
            self._register(worker_id)
        for engine in self._engines.values():
            engine.wait_for_subscriber()
            engine.answer_that_nothing_was_published()
        self._sent: dict[Place, int] = {}

    def _engines_of(self, worker_id: int) -> dict[Place, RecordedEngine]:
        """Return the engines of a worker.

        Replay ports are adjacent, as engines bind these ports for data-parallel ranks.
        """
        engines: dict[Place, RecordedEngine] = {}
        for _ in range(PORT_ATTEMPTS_MAX):
            first = free_port()
            try:
                for rank in range(self._about["dp"]):
                    place = Place(worker_id, rank)
                    engines[place] = RecordedEngine(self._context, first + rank)
                return engines
            except zmq.ZMQError:
                for engine in engines.values():
                    engine.close()
                engines = {}
        raise AssertionError("no adjacent free ports")

    def _register(self, worker_id: int) -> None:
        engines = {p: e for p, e in self._engines.items() if p.worker_id == worker_id}
        replay_port = engines[Place(worker_id, 0)].replay_port
        body = {
            "worker_id": self._first_id + worker_id,
            "model_name": self._model,
            "endpoint": "http://127.0.0.1:1",
            "block_size": self._about["block_size"],
            "data_parallel_size": self._about["dp"],
            "is_eagle": self._about["is_eagle"],
            "kv_events_endpoints": {
                str(p.dp_rank): f"tcp://127.0.0.1:{e.live_port}" for p, e in engines.items()
            },
            "replay_endpoint": f"tcp://127.0.0.1:{replay_port}",
        }
        answer = self._service.post("/workers", body)
        assert (answer.status, answer.body["lifecycle"]) == (201, "schedulable")

    def play(self, recording: Recording) -> Iterator[Truth]:
        """Send everything; yield each truth when all messages before are read."""
        gaps: dict[Place, Replay] = {}
        for step in recording.steps:
            if isinstance(step, Truth):
                for place, seq in self._sent.items():
                    self._service.wait_until_read(self._engines[place].live_port, seq)
                yield step
            elif isinstance(step, Replay):
                gaps[step.place] = step
            else:
                self._engines[step.place].send(step)
                self._sent[step.place] = step.seq
                if step.place in gaps:
                    self._engines[step.place].answer(gaps.pop(step.place))

    def wrong(self, truth: Truth) -> list[tuple[Any, ...]]:
        """Return every row of /overlap_scores that differs from the blocks of the engine."""
        differing = []
        for i, prompt in enumerate(truth.prompts):
            query = {"model_name": self._model, **prompt}
            rows = self._service.post("/overlap_scores", query).body["workers"]
            found = {
                Place(row["worker_id"] - self._first_id, row["dp_rank"]): [
                    row["device_blocks"],
                    row["host_pinned_blocks"],
                ]
                for row in rows
            }
            held = {place: rows[i] for place, rows in truth.held.items()}
            if found != held:
                differing.append((i, found, held))
        return differing

    def close(self) -> None:
        for worker_id in range(1, self._about["workers"] + 1):
            self._service.call("DELETE", f"/workers/{self._first_id + worker_id}", None, {})
        for engine in self._engines.values():
            engine.close()
        self._context.term()


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess({}) as process:
        yield process


@pytest.mark.parametrize("name", STREAMS)
def test_overlap_scores_equal_the_blocks_of_the_engine(service: ServiceProcess, name: str) -> None:
    recording = load(name)
    fleet = Fleet(service, name, recording)
    try:
        wrong = [rows for truth in fleet.play(recording) for rows in fleet.wrong(truth)]
    finally:
        fleet.close()
    assert wrong == []
