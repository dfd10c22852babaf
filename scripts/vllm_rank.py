"""One rank of a real vLLM without GPU and model: its block pool, its CPU tier, its event publisher.

Real are the block pool (allocation, LRU eviction, duplicate blocks), the block hashing, the policy
of the CPU tier and the event publisher with its replay server.  Ours is the stand-in for the
scheduler that moves a request through the pool.  Works with vLLM 0.23 to 0.33.

Source of the shapes of CPU tier events: vLLM's offloading connector.
"""

import base64
import inspect
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["PYTHONHASHSEED"] = "0"

import torch
import zmq
from vllm.distributed.kv_events import (
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    ZmqEventPublisher,
)
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.kv_offload.base import ReqContext, get_offload_block_hash, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.request import Request

BLOCK_SIZE = 16
TOKENS = 150_000
"""Vocabulary; most token ids take three or five bytes in msgpack, as in real streams."""
RECEIVE_S_MAX = 5.0
SUBSCRIPTION_S = 0.3
END_OF_REPLAY = b"\xff" * 8
RNG = random.Random()

kv_cache_utils.init_none_hash(sha256)
HASHER = kv_cache_utils.get_request_block_hasher(BLOCK_SIZE, sha256)

Prompt = dict[str, Any]
"""`token_ids` and, if any, `lora_name`, `cache_salt`, `block_mm_infos`: the fields of the API."""


def call_known(function: Callable[..., Any], **values: Any) -> Any:
    """Call with those of `values` that this version of the engine has parameters for."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in values.items() if name in known})


def tokens(n: int) -> list[int]:
    return [RNG.randrange(TOKENS) for _ in range(n)]


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Wire:
    """One publisher's two sockets, heard from outside."""

    lives = 0

    def __init__(self, rank: int) -> None:
        Wire.lives += 1
        live, replay = f"inproc://live-{Wire.lives}", f"inproc://replay-{Wire.lives}"
        self.publisher = ZmqEventPublisher(rank, endpoint=live, replay_endpoint=replay)
        context = zmq.Context.instance()
        self._live = context.socket(zmq.SUB)
        self._live.set(zmq.RCVHWM, 0)
        self._live.subscribe(b"")
        self._live.connect(ZmqEventPublisher.offset_endpoint_port(live, rank))
        self._replay_endpoint = ZmqEventPublisher.offset_endpoint_port(replay, rank)
        time.sleep(SUBSCRIPTION_S)

    def receive(self, expected: int) -> list[bytes]:
        """The frames of the next live message, which must carry the sequence number `expected`."""
        assert self._live.poll(1000 * RECEIVE_S_MAX), f"batch {expected} was not published"
        frames = self._live.recv_multipart()
        assert int.from_bytes(frames[1], "big") == expected
        return frames

    def replay(self, first: int) -> list[list[bytes]]:
        """What the replay server answers to a request for `first`, without the identity frame."""
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.connect(self._replay_endpoint)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        answer: list[list[bytes]] = []
        while not answer or answer[-1][-2:] != [END_OF_REPLAY, b""]:
            assert socket.poll(1000 * RECEIVE_S_MAX), "the replay server does not answer"
            answer.append(socket.recv_multipart())
        socket.close(linger=0)
        return answer

    def close(self) -> None:
        self.publisher.shutdown()
        self._live.close(linger=0)


class CpuTier:
    """vLLM's CPU offloading manager without the copying, and the events its connector makes."""

    def __init__(self, n_blocks: int, with_tokens: bool) -> None:
        self._manager = call_known(
            CPUOffloadingManager, num_blocks=n_blocks, num_chunks=n_blocks, enable_events=True
        )
        self._n_blocks = n_blocks
        self._with_tokens = with_tokens
        self._origin: dict[bytes, tuple[bytes | None, list[int]]] = {}

    def holds(self, block_hash: bytes) -> bool:
        return self._manager._policy.get(make_offload_key(block_hash, 0)) is not None

    def store(self, request: Request) -> list[Any]:
        """Offload the computed full blocks of a request; returns the events of doing so."""
        context = call_known(ReqContext, req_id=request.request_id)
        hashes = request.block_hashes[: request.num_computed_tokens // BLOCK_SIZE]
        for i, block_hash in enumerate(hashes):
            tokens = list(request.all_token_ids[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE])
            self._origin[block_hash] = (hashes[i - 1] if i else None, tokens)
        self._manager.touch([make_offload_key(h, 0) for h in hashes], context)
        missing = [make_offload_key(h, 0) for h in hashes if not self.holds(h)]
        missing = missing[: self._n_blocks]
        if missing and self._manager.prepare_store(missing, context) is not None:
            self._manager.complete_store(missing, context)
        return [event for change in self._manager.take_events() for event in self._events(change)]

    def _events(self, change: Any) -> Iterator[Any]:
        hashes = [get_offload_block_hash(key) for key in change.keys]
        if change.removed:
            yield call_known(
                BlockRemoved, block_hashes=self._names(hashes), medium="CPU", group_idx=self._group
            )
        elif self._with_tokens:
            for block_hash in hashes:
                parent, tokens = self._origin[block_hash]
                yield self._stored([block_hash], parent, tokens)
        elif self._is_old:
            yield self._stored(hashes, None, [])
        else:
            for block_hash in hashes:
                yield self._stored([block_hash], None, [])

    def _stored(self, hashes: list[bytes], parent: bytes | None, tokens: list[int]) -> Any:
        return call_known(
            BlockStored,
            block_hashes=self._names(hashes),
            parent_block_hash=None if parent is None else self._names([parent])[0],
            token_ids=tokens,
            block_size=BLOCK_SIZE if tokens else 0,
            lora_id=None,
            medium="CPU",
            lora_name=None,
            group_idx=self._group,
        )

    @property
    def _is_old(self) -> bool:
        """The connector of 0.23 knows the form without tokens only, and sends the raw hashes."""
        return "num_blocks" in inspect.signature(CPUOffloadingManager).parameters

    @property
    def _group(self) -> int | None:
        return None if self._is_old else 0

    def _names(self, hashes: list[bytes]) -> list[Any]:
        raw = self._is_old and not self._with_tokens
        return hashes if raw else [kv_cache_utils.maybe_convert_block_hash(h) for h in hashes]


class EngineRank:
    """One data-parallel rank: a block pool and its publisher."""

    def __init__(
        self,
        worker: int,
        rank: int,
        options: SimpleNamespace,
        record: Callable[..., None],
    ) -> None:
        """`record` takes the steps of a recording as they happen."""
        self.worker, self.rank = worker, rank
        self._options, self._record = options, record
        self.lose = 0
        self._start()

    def _start(self) -> None:
        spec = call_known(
            FullAttentionSpec,
            block_size=BLOCK_SIZE,
            num_kv_heads=1,
            head_size=8,
            dtype=torch.float32,
        )
        cache = call_known(
            KVCacheConfig,
            num_blocks=self._options.num_blocks,
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
        self._cpu: CpuTier | None = None
        if self._options.cpu_blocks:
            self._cpu = CpuTier(self._options.cpu_blocks, self._options.cpu_tokens)
        self._wire = Wire(self.rank)
        self._batches = 0
        self._lost_from: int | None = None

    def restart(self) -> None:
        """The engine process ends and comes back: empty pool, sequence numbers from 0."""
        self._wire.close()
        self._start()

    def reset(self) -> None:
        """All cached blocks are given up (AllBlocksCleared)."""
        assert self._pool.reset_prefix_cache()
        self._publish([])

    def run(self, prompt: Prompt, output_tokens: int = 0) -> None:
        """One request from its prompt to its end."""
        request = request_of(prompt)
        found = self._pool.get_computed_blocks(request)
        blocks, cached = found[0], found[1]
        n_tokens = len(prompt["token_ids"])
        assert self._pool.allocate_slots(request, n_tokens - cached, cached, blocks) is not None
        request.num_computed_tokens = n_tokens
        self._publish([])
        for _ in range(output_tokens):
            request.append_output_token_ids(RNG.randrange(TOKENS))
            assert self._pool.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
        self._pool.free(request)
        self._publish([] if self._cpu is None else self._cpu.store(request))

    def held(self, prompt: Prompt) -> tuple[int, int]:
        """Leading blocks of the prompt on GPU, and on GPU continued by the CPU tier."""
        hashes = request_of(prompt).block_hashes
        gpu = count_while(lambda h: self._pool.block_pool.get_cached_block(h, [0]), hashes)
        tier = self._cpu
        more = count_while(tier.holds, hashes[gpu:]) if tier is not None else 0
        return gpu, gpu + more

    def close(self) -> None:
        self._wire.close()

    def _publish(self, more: list[Any]) -> None:
        events = [*self._pool.take_events(), *more]
        if not events:
            return
        sequence = self._batches
        self._batches += 1
        self._wire.publisher.publish(KVEventBatch(ts=float(sequence), events=events))
        topic, _, payload = self._wire.receive(sequence)
        if self.lose:
            self.lose -= 1
            self._lost_from = sequence if self._lost_from is None else self._lost_from
            return
        where = (self.worker, self.rank)
        if self._lost_from is not None:
            answer = [[text_of(f) for f in frames] for frames in self._wire.replay(self._lost_from)]
            self._record("replay", *where, self._lost_from, answer)
            self._lost_from = None
        self._record("live", *where, sequence, topic.decode(), text_of(payload))


def count_while(test: Callable[[Any], Any], items: Iterable[Any]) -> int:
    count = 0
    for item in items:
        if not test(item):
            break
        count += 1
    return count


def request_of(prompt: Prompt) -> Request:
    lora = prompt.get("lora_name")
    return call_known(
        Request,
        request_id="r",
        prompt_token_ids=list(prompt["token_ids"]),
        sampling_params=SamplingParams(max_tokens=4096),
        pooling_params=None,
        arrival_time=0.0,
        block_hasher=HASHER,
        lora_request=LoRARequest(lora, 1 + sum(lora.encode()), "/adapters") if lora else None,
        cache_salt=prompt.get("cache_salt"),
        mm_features=mm_features_of(prompt),
    )


def mm_features_of(prompt: Prompt) -> list[MultiModalFeatureSpec]:
    """One image per block that has one, filling that block, named by a 64-digit hash."""
    infos = prompt.get("block_mm_infos") or []
    return [
        call_known(
            MultiModalFeatureSpec,
            data=None,
            modality="image",
            identifier=f"{item['mm_hash']:016x}" * 4,
            mm_position=PlaceholderRange(offset=block * BLOCK_SIZE, length=BLOCK_SIZE),
        )
        for block, info in enumerate(infos)
        if info is not None
        for item in info["mm_objects"]
    ]
