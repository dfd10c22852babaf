"""Ranks of a real SGLang: its radix cache and event publisher with replay server."""

import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from recording.living import POOL_BLOCKS, on_loopback, prompts, published
from recording.sglang_rank import EngineRank, LoRANameTable, ZmqEventPublisher

_Publisher = on_loopback(ZmqEventPublisher)
_OPTIONS = SimpleNamespace(is_eagle=False, dynamo_format=False, num_blocks=POOL_BLOCKS)


class _Stream:
    """Where batches go."""

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher

    def publish(self, batch_at: Callable[[float], Any]) -> None:
        self._publisher.publish(batch_at(time.time()))


class Rank(EngineRank):  # type: ignore[misc]  # found beside whoever runs this
    """One radix cache; no request runs before `bind`."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._prompts = [{"token_ids": each} for each in prompts()]
        self._options, self._adapters = _OPTIONS, LoRANameTable()

    def bind(self, events: int, replay: int) -> None:
        self.stream = _Stream(published(_Publisher, events, replay))
        self._start()

    def run_one(self) -> None:
        """One request, from its prompt to its end."""
        self.run(self._rng.choice(self._prompts))

    def held_leading(self) -> list[int]:
        """How many leading blocks of each prompt are in the cache."""
        return [self.held(prompt)[0] for prompt in self._prompts]
