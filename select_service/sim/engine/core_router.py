"""Core of the service as a router: the real `SelectorCore` in virtual time."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from select_service.core.admission.admission_settings import AdmissionSettings
from select_service.core.admission.partition_queue import WaitingTicket
from select_service.core.admission.policy_classes import QueueRules
from select_service.core.decision_maker import PlacementDecision
from select_service.core.identity import Rank
from select_service.core.placement.prompt import Prompt, ReadAheadPrompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.selector import SelectorCore
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.schemas.selection import SelectAndReserveRequest
from select_service.schemas.workers import WorkerRegistration
from select_service.sim.engine.gpu_hardware import Fleet
from select_service.sim.engine.kv_block_pool import Change, StoredBlocks
from select_service.sim.engine.replay_world import RankRequest

MODEL = "m"
TICK_S = 1.0
"""Time between two ticks of the queue, in seconds, as in the service."""
BlockHashes = NDArray[np.uint64]
"""uint64[n_blocks]: hash of each block in events and prompts."""


class CoreScene(NamedTuple):
    """Parameters of a core. n_blocks: limit of blocks in all indices of a run together."""

    fleet: Fleet
    n_blocks: int
    seed: int

    def block_hashes(self) -> BlockHashes:
        """Return the hash of every block, for its content and its sequence at once."""
        rng = np.random.default_rng([self.seed, 1])
        return rng.integers(1, 2**63, self.n_blocks + 1, np.int64).view(np.uint64)


class SelectorUsage(NamedTuple):
    """Use of a selector.

    reports: whether callers report the end of prefills
    queue:   rules of waiting requests; None means no queue
    speeds:  whether workers declare their prefill speed
    """

    reports: bool = True
    selector_number: int = 0
    queue: QueueRules | None = None
    speeds: bool = False


USUAL = SelectorUsage()
REFERENCE = RouterConfig(policy="reference")


def make_selector(scene: CoreScene, config: RouterConfig, setting: SelectorUsage) -> SelectorCore:
    """Return a selector with a worker for each rank of the fleet, numbered like the ranks."""
    # Replicas draw independently of each other.
    seed = 1000 * scene.seed + setting.selector_number
    admission = AdmissionSettings(queue=setting.queue)
    selector = build_selector(
        SelectorConfig(config, admission, use_kv_events=False),
        lambda: PrefixIndex(scene.n_blocks + 1),
        rng=Random(seed),
    )
    for worker_id, hardware in enumerate(scene.fleet):
        speed = hardware.prefill_tokens_per_s if setting.speeds else None
        selector.register_worker(
            WorkerRegistration(
                worker_id=worker_id,
                model_name=MODEL,
                endpoint=f"http://worker-{worker_id}",
                block_size=hardware.block_tokens,
                total_kv_blocks=hardware.kv_blocks,
                max_num_batched_tokens=hardware.batch_tokens,
                prefill_tokens_per_s=speed,
            )
        )
    return selector


class CoreRouter:
    """Router based on a selector with its own policy."""

    def __init__(
        self, scene: CoreScene, config: RouterConfig = REFERENCE, setting: SelectorUsage = USUAL
    ) -> None:
        self.selector = make_selector(scene, config, setting)
        (self.partition,) = self.selector.fleet.partitions.values()
        self.block_hashes = scene.block_hashes()
        self._block_tokens = scene.fleet[0].block_tokens
        self._reports = setting.reports
        self._tickets: dict[int, WaitingTicket] = {}
        self._ticked_at = 0.0
        ranks = [Rank(worker_id, 0) for worker_id in range(len(scene.fleet))]
        self._writers = [self.partition.table.writer_of(rank) for rank in ranks]

    def read_prompt(self, ask: RankRequest) -> ReadAheadPrompt:
        """Return the prompt as read from a body with hashes."""
        # Block numbers identify the whole prefix, so the array serves as both kinds of hashes.
        hashes = self.block_hashes[ask.chain]
        return ReadAheadPrompt(self._block_tokens, False, Prompt(hashes, hashes, ask.prompt_tokens))

    def choose(self, ask: RankRequest, now: float) -> int | None:
        request = SelectAndReserveRequest(model_name=MODEL, reservation_id=str(ask.number))
        decision = self.selector.select_and_reserve(request, now, read_ahead=self.read_prompt(ask))
        if isinstance(decision, WaitingTicket):
            self._tickets[ask.number] = decision
            return None
        return decision.selection.worker_id

    def first_token(self, number: int, now: float) -> None:
        if self._reports:
            self.selector.complete_prefill(str(number), now)

    def output_block(self, number: int, now: float) -> None:
        self.selector.add_output_block(str(number), None, now)

    def finished(self, number: int, now: float) -> None:
        self.selector.free_reservation(str(number), now)

    def changed(self, rank: int, changes: Sequence[Change], now: float) -> None:
        writer = self._writers[rank]
        for change in changes:
            if isinstance(change, StoredBlocks):
                blocks = self.block_hashes[change.chain[change.first : change.end]]
                parent = (
                    int(self.block_hashes[change.chain[change.first - 1]]) if change.first else None
                )
                writer.store(Tier.GPU, parent, blocks, blocks)
            else:
                writer.remove(Tier.GPU, self.block_hashes[change.blocks])

    def released(self, now: float) -> Iterable[tuple[int, int]]:
        # Without waiting requests a look at the gate would only cost time.
        if not self._tickets:
            return
        # In the service a periodic task does this.
        self.selector.gate.wake_by_progress(now)
        self.selector.run_pending(now)
        if now >= self._ticked_at + TICK_S:
            self._ticked_at = now
            self.selector.gate.run_every_second(now)
        settled = [number for number, ticket in self._tickets.items() if ticket.outcome is not None]
        for number in settled:
            decision = self._tickets.pop(number).outcome
            assert isinstance(decision, PlacementDecision), decision
            yield number, decision.selection.worker_id
