"""What the living engines have in common: their prompts, the size of their caches, their ports."""

import random
import time
from typing import Any

import zmq

BLOCK_SIZE = 16
POOL_BLOCKS = 48
PROMPTS = 15
PROMPT_BLOCKS_MAX = 8
BIND_S_MAX = 30.0


def prompts() -> list[list[int]]:
    """The same for every life and rank; the pool holds about half of them."""
    rng = random.Random(7)
    sizes = [rng.randint(1, PROMPT_BLOCKS_MAX) * BLOCK_SIZE for _ in range(PROMPTS)]
    return [[rng.randrange(1000, 100_000) for _ in range(size + 1)] for size in sizes]


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


def on_loopback(publisher: Any) -> Any:
    """A class like an engine's own, which binds to this machine only; theirs bind wildcards."""

    class LoopbackPublisher(publisher):  # type: ignore[misc]
        def _socket_setup(self) -> None:
            self._pub = self._ctx.socket(zmq.PUB)
            self._pub.set_hwm(self._hwm)
            bind(self._pub, self._endpoint)
            self._replay = self._ctx.socket(zmq.ROUTER)
            bind(self._replay, self._replay_endpoint)

    return LoopbackPublisher


def published(publisher: Any, events: int, replay: int) -> Any:
    """The publisher of rank 0 on these ports."""
    return publisher(
        0, endpoint=f"tcp://127.0.0.1:{events}", replay_endpoint=f"tcp://127.0.0.1:{replay}"
    )
