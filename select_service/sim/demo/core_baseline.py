"""Baseline: the same workload under a policy of the service, with the core in this process.

The core receives the same calls as the service over HTTP and ZMQ, in the same order of virtual
time, and receives events at once.
"""

from random import Random

import numpy as np

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from select_service.core.admission.partition_queue import WaitingTicket
from select_service.core.identity import Rank
from select_service.core.placement.router_config import RouterConfig
from select_service.core.selector import SelectorConfig, SelectorCore
from select_service.schemas.selection import SelectAndReserveRequest
from select_service.schemas.workers import WorkerRegistration
from select_service.sim.demo.conversations import ConversationWorkload
from select_service.sim.demo.demo_fleet import BATCH_TOKENS
from select_service.sim.demo.prefix_cache import (
    KvEvent,
    PrefixCache,
    VllmBlockRemoved,
    VllmBlockStored,
)
from select_service.sim.demo.virtual_world import DemoRequest, RequestStep, StepEvent, VirtualWorld

MODEL_NAME = "demo"


def run_core(
    workload: ConversationWorkload, engines: list[PrefixCache], policy: str, seed: int
) -> VirtualWorld:
    """Run the whole workload and return the world with its tally."""
    core = _CoreRouter(engines, policy, seed)
    world = VirtualWorld(workload, engines, core.apply_events)
    while (happening := world.next_step()) is not None:
        if happening.step is RequestStep.CHOOSE:
            world.assign_rank(happening.request, core.choose_rank(happening.request, world.now_s))
        else:
            core.report_step(happening, world.now_s)
    return world


class _CoreRouter:
    """A selector whose workers are the ranks; the worker id is the index of the rank."""

    def __init__(self, engines: list[PrefixCache], policy: str, seed: int) -> None:
        blocks_max = sum(engine.blocks_max for engine in engines)
        self._block_size = engines[0].block_size
        self._selector = SelectorCore(
            SelectorConfig(RouterConfig(policy=policy), use_kv_events=False),
            # One block more than all caches together, so that the index never evicts.
            lambda: PrefixIndex(blocks_max + 1),
            rng=Random(seed),
        )
        for index, engine in enumerate(engines):
            self._selector.register_worker(
                WorkerRegistration(
                    worker_id=index,
                    model_name=MODEL_NAME,
                    endpoint=f"http://rank-{index}",
                    block_size=self._block_size,
                    total_kv_blocks=engine.blocks_max,
                    max_num_batched_tokens=BATCH_TOKENS,
                )
            )
        (partition,) = self._selector.fleet.partitions.values()
        self._writers = [partition.table.writer_of(Rank(i, 0)) for i in range(len(engines))]

    def choose_rank(self, request: DemoRequest, now: float) -> int:
        asked = SelectAndReserveRequest(
            model_name=MODEL_NAME, reservation_id=request.name, token_ids=request.prompt
        )
        decision = self._selector.select_and_reserve(asked, now)
        # The demo never enables the queue.
        assert not isinstance(decision, WaitingTicket), "there is no queue"
        return decision.selection.worker_id

    def report_step(self, happening: StepEvent, now: float) -> None:
        name = happening.request.name
        match happening.step:
            case RequestStep.PREFILL_DONE:
                self._selector.complete_prefill(name, now)
            case RequestStep.OUTPUT_BLOCK:
                self._selector.add_output_block(name, None, now)
            case RequestStep.FINISHED:
                self._selector.free_reservation(name, now)

    def apply_events(self, rank_index: int, events: list[KvEvent]) -> None:
        writer = self._writers[rank_index]
        for event in events:
            if isinstance(event, VllmBlockStored):
                tokens = np.array(event.token_ids, np.uint32)
                # Names come from the engine, hashes from the content, as in the service.
                names = np.array(event.block_hashes, np.uint64)
                hashes = compute_block_hashes(tokens, self._block_size)
                writer.store(Tier.GPU, event.parent_block_hash, hashes, names)
            elif isinstance(event, VllmBlockRemoved):
                writer.remove(Tier.GPU, np.array(event.block_hashes, np.uint64))
