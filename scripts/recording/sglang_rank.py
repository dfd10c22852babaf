"""Rank of a real SGLang without GPU and model: radix cache and event publisher.

Real are the radix tree (matching, splitting, LRU eviction of leaves), block hashes, events, and the
event publisher with its replay server. Simulated is the budget: before each insert, enough blocks
are evicted. Tested with SGLang 0.5.23.

SGLang's modules for GPU memory and models are replaced by empty modules, because importing them
needs packages that neither the tree nor the publisher uses.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from recording.wire import BLOCK_SIZE, RNG, TOKENS, Prompt, Stream

_ABSENT = (
    "sglang.srt.configs",
    "sglang.srt.mem_cache.allocator",
    "sglang.srt.mem_cache.memory_pool",
    "sglang.srt.utils.hf_transformers",
    "sglang.srt.utils.hf_transformers_utils",
)


class _Empty(types.ModuleType):
    """Module with every name; each is a class without content."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _AbsentModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if any(name == absent or name.startswith(f"{absent}.") for absent in _ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.insert(0, _AbsentModules())

from sglang.srt.disaggregation.kv_events import KVEventBatch, ZmqEventPublisher  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.events import LoRANameTable  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey  # noqa: E402


class _NoMemory:
    """Replacement of the GPU memory allocator without memory to free."""

    device = "cpu"

    def free_segment(self, *_: Any, **__: Any) -> None:
        pass


class SglangEngineRank:
    """Data-parallel rank: a radix cache and its publisher."""

    def __init__(
        self, worker: int, rank: int, options: SimpleNamespace, record: Callable[..., None]
    ) -> None:
        self._options = options
        self._adapters = LoRANameTable()
        self.stream = Stream(ZmqEventPublisher, worker, rank, record)
        self._start()

    def _start(self) -> None:
        self._cache = RadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=_NoMemory(),
                page_size=BLOCK_SIZE,
                is_eagle=self._options.is_eagle,
                enable_kv_cache_events=True,
                dynamo_kv_event_format=self._options.dynamo_format,
                kv_event_lora_names=self._adapters,
            )
        )
        self._publish()

    def restart(self) -> None:
        """Restart the engine: empty cache, sequence numbers from 0."""
        self.stream.close()
        self.stream.open()
        self._start()

    def reset(self) -> None:
        """Drop all cached blocks (AllBlocksCleared)."""
        self._cache.reset()
        self._publish()

    def run(self, prompt: Prompt, output_tokens: int = 0) -> None:
        """Run a request from prompt to end; the cache then stores the request."""
        self._make_room(len(prompt["token_ids"]) + output_tokens)
        self._insert(prompt, prompt["token_ids"])
        if output_tokens:
            output = [RNG.randrange(TOKENS) for _ in range(output_tokens)]
            self._insert(prompt, prompt["token_ids"] + output)

    def count_cached(self, prompt: Prompt) -> tuple[int, int]:
        """Return the leading cached blocks of the prompt; there is no second tier."""
        key = self._key(prompt, prompt["token_ids"])
        found = self._cache.match_prefix(MatchPrefixParams(key=key)).device_prefix_len
        return found // BLOCK_SIZE, found // BLOCK_SIZE

    def close(self) -> None:
        self.stream.close()

    def _insert(self, prompt: Prompt, tokens: list[int]) -> None:
        self._cache.insert(InsertParams(key=self._key(prompt, tokens)))
        self._publish()

    def _make_room(self, n_tokens: int) -> None:
        excess = self._cache.total_size() + n_tokens - self._options.num_blocks * BLOCK_SIZE
        if excess > 0:
            self._cache.evict(EvictParams(num_tokens=excess))
            self._publish()

    def _key(self, prompt: Prompt, tokens: list[int]) -> RadixKey:
        adapter = prompt.get("lora_name")
        extra_key = None if adapter is None else f"{sum(adapter.encode()):032x}"
        if adapter is not None:
            self._adapters.register(lora_id=extra_key, lora_name=adapter)
        return RadixKey(
            array("q", tokens), extra_key=extra_key, cache_salt=prompt.get("cache_salt")
        )

    def _publish(self) -> None:
        events = self._cache.kv_events.take()
        if events:
            self.stream.publish(lambda ts: KVEventBatch(ts=ts, events=events))
