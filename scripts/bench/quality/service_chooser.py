"""A service process as a chooser: HTTP for requests and their lives, ZMQ for KV events."""

import asyncio
import http.client
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import zmq.asyncio

from select_service.replaying.hardware import BLOCK_TOKENS, Fleet
from select_service.replaying.pool import Change, Stored
from select_service.replaying.streams import Workload
from select_service.replaying.world import Ask, World
from select_service.simulator.engine import BlockRemoved, BlockStored, KvEvent
from select_service.simulator.publisher import Publisher

MODEL, HOST = "m", "127.0.0.1"
ANSWER_S_MAX = 60.0
SUBSCRIBE_S_MAX = 30.0
READ_S_MAX = 30.0
POLL_S = 0.05


class PacedWorld(World):
    """Virtual time that goes at most `pace` times as fast as the clock.

    Where the machine is too slow for that it goes slower, and nothing is left out or done early.
    """

    def __init__(self, workload: Workload, fleet: Fleet, pace: float) -> None:
        super().__init__(workload, fleet, event_delay_s=0.0)
        self.late_s = 0.0
        """By how many seconds of the clock it took longer than the pace allows."""
        self._pace = pace
        self._begin = time.monotonic()

    def pass_time(self, until: float) -> None:
        ahead_s = self._begin + until / self._pace - time.monotonic()
        if ahead_s > 0.0:
            time.sleep(ahead_s)
        else:
            self._begin -= ahead_s
            self.late_s -= ahead_s
        super().pass_time(until)


class EventStreams:
    """What engines publish, a socket for each rank.

    The tokens of a block follow from its number, so equal blocks of the simulation are equal
    prompts, and a block is called by its number plus one.
    """

    def __init__(self, n_ranks: int) -> None:
        self._context = zmq.asyncio.Context()
        self.publishers = [Publisher(self._context, 0) for _ in range(n_ranks)]

    def wait_for_subscribers(self) -> None:
        for publisher in self.publishers:
            assert asyncio.run(publisher.wait_for_subscriber(SUBSCRIBE_S_MAX))

    def publish(self, rank: int, changes: Sequence[Change]) -> None:
        self.publishers[rank].publish([_event_of(change) for change in changes])

    def close(self) -> None:
        for publisher in self.publishers:
            publisher.close()
        self._context.term()


def tokens_of(blocks: np.ndarray) -> list[int]:
    """BLOCK_TOKENS of each block."""
    firsts = blocks.astype(np.int64)[:, None] * BLOCK_TOKENS
    tokens: list[int] = (firsts + np.arange(BLOCK_TOKENS)).ravel().tolist()
    return tokens


def _event_of(change: Change) -> KvEvent:
    if isinstance(change, Stored):
        blocks = change.chain[change.first : change.end]
        parent = int(change.chain[change.first - 1]) + 1 if change.first else None
        return BlockStored((blocks + 1).tolist(), parent, tokens_of(blocks), BLOCK_TOKENS)
    return BlockRemoved((change.blocks + 1).tolist())


class ServiceChooser:
    """Every call is one request of one connection, in the order of virtual time."""

    def __init__(self, port: int, world: World, streams: EventStreams) -> None:
        self.calls_s: list[float] = []
        """How long each choice took, in seconds of the clock."""
        self._http = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S_MAX)
        self._world, self._streams = world, streams
        self._decided: deque[tuple[float, int, int]] = deque()

    def register(self, fleet: Fleet) -> None:
        """One worker for each rank, whose id is its number; returns when all are listened to."""
        for worker_id, hardware in enumerate(fleet):
            body = {
                "worker_id": worker_id,
                "model_name": MODEL,
                "endpoint": f"http://{HOST}/simulated-worker-{worker_id}",
                "block_size": BLOCK_TOKENS,
                "total_kv_blocks": hardware.kv_blocks,
                "max_num_batched_tokens": hardware.batch_tokens,
                "kv_events_endpoint": self._streams.publishers[worker_id].endpoint,
            }
            self._call("POST", "/workers", body)
        self._streams.wait_for_subscribers()

    # --- a chooser

    def choose(self, ask: Ask, now: float) -> int | None:
        """The engine gets the request when the answer is there."""
        tail = ask.prompt_tokens - BLOCK_TOKENS * len(ask.chain)
        body = {
            "model_name": MODEL,
            "reservation_id": str(ask.number),
            "token_ids": tokens_of(ask.chain) + [ask.number] * tail,
        }
        begin = time.perf_counter()
        answer = self._call("POST", "/select_and_reserve", body)
        took_s = time.perf_counter() - begin
        self.calls_s.append(took_s)
        self._decided.append((now + took_s, ask.number, answer["worker_id"]))
        self._world.at(now + took_s, self._world.let_go)
        return None

    def first_token(self, number: int, now: float) -> None:
        self._call("POST", f"/reservations/{number}/prefill_complete", {})

    def output_block(self, number: int, now: float) -> None:
        self._call("POST", f"/reservations/{number}/output_block", {})

    def finished(self, number: int, now: float) -> None:
        self._call("DELETE", f"/reservations/{number}")

    def changed(self, rank: int, changes: Sequence[Change], now: float) -> None:
        self._streams.publish(rank, changes)

    def released(self, now: float) -> Iterable[tuple[int, int]]:
        ready = [each for each in self._decided if each[0] <= now]
        for each in ready:
            self._decided.remove(each)
            yield each[1:]

    # --- afterwards

    def unread_batches(self) -> int:
        """Of what was published, those that the service has not read some time later."""
        deadline = time.monotonic() + READ_S_MAX
        while (unread := self._unread()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return unread

    def _unread(self) -> int:
        rows = self._call("GET", "/workers")
        read = {row["worker_id"]: row["kv_events"]["0"]["last_sequence"] for row in rows}
        return sum(
            publisher.batches - (-1 if read[rank] is None else read[rank]) - 1
            for rank, publisher in enumerate(self._streams.publishers)
        )

    def held(self) -> int:
        """Requests that are live, by the service's own account."""
        return sum(
            row["active_requests"] for each in self._call("GET", "/loads") for row in each["loads"]
        )

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Raises AssertionError for a refusal."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"content-type": "application/json"}
        self._http.request(method, path, content, headers)
        answer = self._http.getresponse()
        read = answer.read()
        assert answer.status < 300, (method, path, answer.status, read[:300])
        return msgspec.json.decode(read) if read else None
