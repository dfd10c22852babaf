"""Router based on a service process: HTTP for requests, ZMQ for KV events."""

import asyncio
import http.client
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import zmq.asyncio

from select_service.sim.demo.kv_publisher import KvPublisherSockets
from select_service.sim.engine.block_streams import ReplayWorkload
from select_service.sim.engine.gpu_hardware import BLOCK_TOKENS, Fleet
from select_service.sim.engine.kv_block_pool import Change, StoredBlocks
from select_service.sim.engine.prefix_cache import KvEvent, VllmBlockRemoved, VllmBlockStored
from select_service.sim.engine.replay_world import RankRequest, ReplayWorld

MODEL, HOST = "m", "127.0.0.1"
ANSWER_S_MAX = 60.0
SUBSCRIBE_S_MAX = 30.0
READ_S_MAX = 30.0
POLL_S = 0.05


class PacedWorld(ReplayWorld):
    """Virtual time at most `pace` times as fast as the clock.

    On a slow machine time runs slower; no event is skipped or processed early.
    """

    def __init__(self, workload: ReplayWorkload, fleet: Fleet, pace: float) -> None:
        super().__init__(workload, fleet, event_delay_s=0.0)
        self.late_s = 0.0
        """Seconds of the clock beyond the time that the pace allows."""
        self._pace = pace
        self._begin = time.monotonic()

    def pass_time(self, until: float) -> None:
        ahead_s = self._begin + until / self._pace - time.monotonic()
        if ahead_s > 0.0:
            time.sleep(ahead_s)
        else:
            # Moves the origin, so that a delay is not made up by running faster later.
            self._begin -= ahead_s
            self.late_s -= ahead_s
        super().pass_time(until)


class EventStreams:
    """KV events of engines, with a socket for each rank.

    The tokens of a block follow from its number, so equal blocks of the simulation are equal
    prompts. The name of a block is its number plus one.
    """

    def __init__(self, n_ranks: int) -> None:
        self._context = zmq.asyncio.Context()
        self.publishers = [KvPublisherSockets(self._context, 0) for _ in range(n_ranks)]

    def wait_for_subscribers(self) -> None:
        for publisher in self.publishers:
            assert asyncio.run(publisher.wait_for_subscriber(SUBSCRIBE_S_MAX))

    def publish(self, rank: int, changes: Sequence[Change]) -> None:
        self.publishers[rank].publish_batch([_event_of(change) for change in changes])

    def close(self) -> None:
        for publisher in self.publishers:
            publisher.close()
        self._context.term()


def tokens_of(blocks: np.ndarray) -> list[int]:
    """Return BLOCK_TOKENS tokens of each block."""
    firsts = blocks.astype(np.int64)[:, None] * BLOCK_TOKENS
    tokens: list[int] = (firsts + np.arange(BLOCK_TOKENS)).ravel().tolist()
    return tokens


def _event_of(change: Change) -> KvEvent:
    if isinstance(change, StoredBlocks):
        blocks = change.chain[change.first : change.end]
        parent = int(change.chain[change.first - 1]) + 1 if change.first else None
        return VllmBlockStored((blocks + 1).tolist(), parent, tokens_of(blocks), BLOCK_TOKENS)
    return VllmBlockRemoved((change.blocks + 1).tolist())


class ServiceRouter:
    """Router that sends each call as one request on one connection, in virtual order."""

    def __init__(self, port: int, world: ReplayWorld, streams: EventStreams) -> None:
        self.calls_s: list[float] = []
        """Duration of each choice, in seconds of the clock."""
        self._http = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S_MAX)
        self._world, self._streams = world, streams
        self._decided: deque[tuple[float, int, int]] = deque()

    def register_workers(self, fleet: Fleet) -> None:
        """Register one worker for each rank, numbered alike; wait until the service subscribes to
        all.
        """
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

    # Router methods

    def choose(self, ask: RankRequest, now: float) -> int | None:
        """Return the rank; the engine receives the request after the answer."""
        # Tokens behind the last full block, unique per request.
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
        # Delivered later by `released`: the duration of the call delays the request.
        self._decided.append((now + took_s, ask.number, answer["worker_id"]))
        self._world.schedule_at(now + took_s, self._world.send_released)
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

    # Checks after the run

    def unread_batches(self) -> int:
        """Return the published batches that the service has not read some time later."""
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

    def count_reservations(self) -> int:
        """Return the live requests according to the service."""
        return sum(
            row["active_requests"] for each in self._call("GET", "/loads") for row in each["loads"]
        )

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call the service.  Raises AssertionError for a refusal."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"content-type": "application/json"}
        self._http.request(method, path, content, headers)
        answer = self._http.getresponse()
        read = answer.read()
        assert answer.status < 300, (method, path, answer.status, read[:300])
        return msgspec.json.decode(read) if read else None
