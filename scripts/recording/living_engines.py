"""Ranks of a real vLLM, without GPU and model, that live, are killed, and live again.

Run by `scripts/bench/engine_restarts.py` with the Python of a vLLM environment.  The block pool,
the block hashing and the event publisher with its replay server are vLLM's own.  Importing them
takes long, so this process does it once, and every life of the engines is a child that it forks.

    stdin:  {"life": seed, "control": address, "requests": n, "ports": [[events, replay], ...]}
    stdout: the process id of the life, once its requests are done and its ports are bound

A life answers on its control address (REP, JSON): {"requests": n} runs so many on every rank,
{"stream": true} runs one after the other until told otherwise, {"held": true} says of every rank
how many leading blocks of each prompt are in its pool.
"""

import inspect
import json
import os
import random
import sys
import threading
import time
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["PYTHONHASHSEED"] = "0"

import torch
import zmq
from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

BLOCK_SIZE = 16
POOL_BLOCKS = 48
PROMPTS = 15
PROMPT_BLOCKS_MAX = 8
STREAM_PAUSE_S = 0.02
BIND_S_MAX = 30.0


def prompts() -> list[list[int]]:
    """The same for every life and rank; the pool holds about half of them."""
    rng = random.Random(7)
    sizes = [rng.randint(1, PROMPT_BLOCKS_MAX) * BLOCK_SIZE for _ in range(PROMPTS)]
    return [[rng.randrange(1000, 100_000) for _ in range(size + 1)] for size in sizes]


def call_known(make: Any, **given: Any) -> Any:
    """With those of the arguments that this version of vLLM knows."""
    known = inspect.signature(make).parameters
    return make(**{name: value for name, value in given.items() if name in known})


class LoopbackPublisher(ZmqEventPublisher):  # type: ignore[misc]
    """vLLM's, bound to this machine only; vLLM itself binds wildcard addresses."""

    def _socket_setup(self) -> None:
        self._pub = self._ctx.socket(zmq.PUB)
        self._pub.set_hwm(self._hwm)
        bind(self._pub, self._endpoint)
        self._replay = self._ctx.socket(zmq.ROUTER)
        bind(self._replay, self._replay_endpoint)


def bind(socket: Any, endpoint: str) -> None:
    """The life before may not be quite dead yet."""
    until = time.monotonic() + BIND_S_MAX
    while True:
        try:
            socket.bind(endpoint)
            return
        except zmq.ZMQError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


class Rank:
    """One block pool; its batches are handed to the publisher only once that is bound."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._prompts = prompts()
        self._hasher = kv_cache_utils.get_request_block_hasher(BLOCK_SIZE, sha256)
        spec = call_known(
            FullAttentionSpec,
            block_size=BLOCK_SIZE,
            num_kv_heads=1,
            head_size=8,
            dtype=torch.float32,
        )
        cache = call_known(
            KVCacheConfig,
            num_blocks=POOL_BLOCKS,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self._pool = call_known(
            KVCacheManager,
            kv_cache_config=cache,
            max_model_len=65_536,
            scheduler_block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
            enable_caching=True,
            enable_kv_cache_events=True,
            use_eagle=False,
            log_stats=False,
        )
        self.publisher: Any = None

    def bind(self, events: int, replay: int) -> None:
        self.publisher = LoopbackPublisher(
            0, endpoint=f"tcp://127.0.0.1:{events}", replay_endpoint=f"tcp://127.0.0.1:{replay}"
        )

    def run(self) -> None:
        """One request, from its prompt to its end."""
        request = self._request(self._rng.choice(self._prompts))
        found = self._pool.get_computed_blocks(request)
        n_tokens = request.num_prompt_tokens
        new = n_tokens - found[1]
        assert self._pool.allocate_slots(request, new, found[1], found[0]) is not None
        request.num_computed_tokens = n_tokens
        self._pool.free(request)
        events = self._pool.take_events()
        if events:
            self.publisher.publish(KVEventBatch(ts=time.time(), events=events))

    def held(self) -> list[int]:
        return [self._leading(self._request(prompt).block_hashes) for prompt in self._prompts]

    def _leading(self, hashes: list[Any]) -> int:
        blocks = self._pool.block_pool
        return next(
            (i for i, each in enumerate(hashes) if blocks.get_cached_block(each, [0]) is None),
            len(hashes),
        )

    def _request(self, tokens: list[int]) -> Any:
        return call_known(
            Request,
            request_id="r",
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(max_tokens=16),
            pooling_params=None,
            arrival_time=0.0,
            block_hasher=self._hasher,
        )


class Life:
    """All ranks from one start of the engines to their death."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._ranks = [Rank(order["life"] * 1000 + i) for i in range(len(order["ports"]))]
        self._lock = threading.Lock()
        self._streams = False
        for rank, (events, replay) in zip(self._ranks, order["ports"], strict=True):
            rank.bind(events, replay)
        self._run(order["requests"])
        self._control = zmq.Context.instance().socket(zmq.REP)
        self._control.bind(order["control"])
        threading.Thread(target=self._stream, daemon=True).start()

    def serve(self) -> None:
        while True:
            order = json.loads(self._control.recv())
            answer: Any = "done"
            with self._lock:
                self._streams = order.get("stream", self._streams)
                self._run(order.get("requests", 0))
                if "held" in order:
                    answer = [rank.held() for rank in self._ranks]
            self._control.send_string(json.dumps(answer))

    def _run(self, requests: int) -> None:
        for _ in range(requests):
            for rank in self._ranks:
                rank.run()

    def _stream(self) -> None:
        while True:
            time.sleep(STREAM_PAUSE_S)
            with self._lock:
                if self._streams:
                    self._run(1)


def main() -> None:
    kv_cache_utils.init_none_hash(sha256)
    print(json.dumps(prompts()), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child:
            threading.Thread(target=os.waitpid, args=(child, 0), daemon=True).start()
            continue
        life = Life(order)
        print(os.getpid(), flush=True)
        life.serve()


if __name__ == "__main__":
    main()
