"""The same workload under a policy of the service itself, in this process.

The core is told what the service is told over HTTP and ZMQ, in the same order of virtual time, and
events at once.
"""

from random import Random

import numpy as np

from indexer.hashing.hashes import block_hashes
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from select_service.bodies.selection import SelectAndReserveRequest
from select_service.bodies.workers import WorkerRegistration
from select_service.core.admission.waiting import Ticket
from select_service.core.decide.router_config import RouterConfig
from select_service.core.identity import Rank
from select_service.core.selector import Selector, SelectorConfig
from select_service.simulator.engine import BlockRemoved, BlockStored, Engine, KvEvent
from select_service.simulator.fleet import BATCH_TOKENS
from select_service.simulator.workload import Workload
from select_service.simulator.world import Happening, SimRequest, Step, World

MODEL_NAME = "demo"


def run_core(workload: Workload, engines: list[Engine], policy: str, seed: int) -> World:
    """Work off the whole workload; returns the world with its tally."""
    core = _Core(engines, policy, seed)
    world = World(workload, engines, core.publish)
    while (happening := world.next_step()) is not None:
        if happening.step is Step.CHOOSE:
            world.assign(happening.request, core.choose(happening.request, world.now_s))
        else:
            core.tell(happening, world.now_s)
    return world


class _Core:
    """One selector; ranks are workers of their own, by their index."""

    def __init__(self, engines: list[Engine], policy: str, seed: int) -> None:
        blocks_max = sum(engine.blocks_max for engine in engines)
        self._block_size = engines[0].block_size
        self._selector = Selector(
            SelectorConfig(RouterConfig(policy=policy), use_kv_events=False),
            lambda: PrefixIndex(blocks_max + 1),
            rng=Random(seed),
        )
        for index, engine in enumerate(engines):
            self._selector.register(
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
        self._writers = [partition.table.writer(Rank(i, 0)) for i in range(len(engines))]

    def choose(self, request: SimRequest, now: float) -> int:
        asked = SelectAndReserveRequest(
            model_name=MODEL_NAME, reservation_id=request.name, token_ids=request.prompt
        )
        decision = self._selector.select_and_reserve(asked, now)
        assert not isinstance(decision, Ticket), "there is no queue"
        return decision.selection.worker_id

    def tell(self, happening: Happening, now: float) -> None:
        name = happening.request.name
        match happening.step:
            case Step.PREFILL_DONE:
                self._selector.prefill_complete(name, now)
            case Step.OUTPUT_BLOCK:
                self._selector.output_block(name, None, now)
            case Step.FINISHED:
                self._selector.free(name, now)

    def publish(self, rank_index: int, events: list[KvEvent]) -> None:
        writer = self._writers[rank_index]
        for event in events:
            if isinstance(event, BlockStored):
                tokens = np.array(event.token_ids, np.uint32)
                names = np.array(event.block_hashes, np.uint64)
                hashes = block_hashes(tokens, self._block_size)
                writer.store(Tier.GPU, event.parent_block_hash, hashes, names)
            elif isinstance(event, BlockRemoved):
                writer.remove(Tier.GPU, np.array(event.block_hashes, np.uint64))
