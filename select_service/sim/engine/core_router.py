"""Core of the service as a router: the real `SelectorCore` in virtual time."""

from collections.abc import Iterable, Sequence
from functools import partial
from math import inf
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from select_service.core.admission.admission_settings import AdmissionSettings
from select_service.core.admission.policy_classes import QueueRules
from select_service.core.admission.waiting_ticket import WaitingTicket
from select_service.core.assumed.rank_modes import AssumptionRules
from select_service.core.assumption_service import TURN_S
from select_service.core.decision_maker import PlacementDecision
from select_service.core.identity import Rank
from select_service.core.placement.prompt import Prompt, ReadAheadPrompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.selector import SelectorCore
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.schemas.kv_cache import KvCacheFields
from select_service.schemas.kv_transfer import KvTransferFields
from select_service.schemas.observation import Role
from select_service.schemas.selection import SelectAndReserveRequest
from select_service.schemas.workers import WorkerRegistration
from select_service.sim.engine.gpu_hardware import Fleet
from select_service.sim.engine.kv_block_pool import Change, StoredBlocks
from select_service.sim.engine.replay_world import RankRequest, ReplayWorld, RequestHistory

MODEL = "m"
TICK_S = 1.0
"""Time between two ticks of the queue, in seconds, as in the service."""
BlockHashes = NDArray[np.uint64]
"""uint64[n_blocks]: hash of each block in events and prompts."""


class CacheKnowledge(NamedTuple):
    """Sources from which a selector knows the caches of engines.

    has_events: whether engines publish events
    has_unseen_tiers: whether engines declare tiers without events
    assumes: whether the blocks of bookings are assumed where there are no events
    ttl_s: seconds in which a block is assumed after its last use; infinite means no limit
    declared: declared share of the true cache size; None means that no size is declared
    reports_cached: whether callers report the cached tokens of prompts
    reports_answers: whether callers report the tokens of answers
    """

    has_events: bool = True
    has_unseen_tiers: bool = False
    assumes: bool = False
    ttl_s: float = inf
    declared: float | None = 1.0
    reports_cached: bool = False
    reports_answers: bool = False


class RankRegistration(NamedTuple):
    """Facts about a rank in its registration, for pairs."""

    role: Role | None = None
    kv_transfer: KvTransferFields | None = None


class CoreScene(NamedTuple):
    """Parameters of a core. n_blocks: limit of blocks in all indices of a run together.

    ranks: facts about each rank; empty means that none are registered
    """

    fleet: Fleet
    n_blocks: int
    seed: int
    knowledge: CacheKnowledge = CacheKnowledge()
    ranks: tuple[RankRegistration, ...] = ()

    def block_hashes(self) -> BlockHashes:
        """Return the hash of every block, for content and sequence at once."""
        rng = np.random.default_rng([self.seed, 1])
        return rng.integers(1, 2**63, self.n_blocks + 1, np.int64).view(np.uint64)


class SelectorUsage(NamedTuple):
    """Use of a selector.

    reports: whether callers report the end of prefills
    queue:   rules of waiting requests; None means no queue
    speeds:  whether workers declare their prefill speed
    has_sessions: whether requests name their session
    has_flows: whether requests name their client as fairness_id, by the labels of the workload
    urgent_client: label of the client with a strict_priority in its requests; None means no client
    """

    reports: bool = True
    selector_number: int = 0
    queue: QueueRules | None = None
    speeds: bool = False
    has_sessions: bool = False
    has_flows: bool = False
    urgent_client: int | None = None


USUAL = SelectorUsage()
REFERENCE = RouterConfig(policy="reference")


def make_selector(scene: CoreScene, config: RouterConfig, setting: SelectorUsage) -> SelectorCore:
    """Return a selector with a worker for each rank of the fleet, numbered like the ranks."""
    # Replicas draw independently of each other.
    seed = 1000 * scene.seed + setting.selector_number
    admission, knowledge = AdmissionSettings(queue=setting.queue), scene.knowledge
    selector = build_selector(
        SelectorConfig(
            config,
            admission,
            use_kv_events=knowledge.has_events,
            assumptions=AssumptionRules(
                assumes_without_events=knowledge.assumes, ttl_s=knowledge.ttl_s
            ),
        ),
        lambda: PrefixIndex(scene.n_blocks + 1),
        rng=Random(seed),
    )
    for worker_id, hardware in enumerate(scene.fleet):
        speed = hardware.prefill_tokens_per_s if setting.speeds else None
        declared = knowledge.declared
        facts = scene.ranks[worker_id] if scene.ranks else RankRegistration()
        selector.register_worker(
            WorkerRegistration(
                worker_id=worker_id,
                model_name=MODEL,
                endpoint=f"http://worker-{worker_id}",
                block_size=hardware.block_tokens,
                total_kv_blocks=None if declared is None else int(declared * hardware.kv_blocks),
                max_num_batched_tokens=hardware.batch_tokens,
                prefill_tokens_per_s=speed,
                role=facts.role,
                kv_transfer=facts.kv_transfer,
                # The world writes the events into the index; no subscriber connects.
                kv_events_endpoint=f"tcp://worker-{worker_id}:5557",
                kv_cache=KvCacheFields(unseen_tiers=True) if knowledge.has_unseen_tiers else None,
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
        self._setting, self._knowledge = setting, scene.knowledge
        self._histories: Sequence[RequestHistory] = ()
        self.claimed: dict[int, int] = {}
        """Prompt tokens that the selector took for cached, by request that did not wait."""
        self._tickets: dict[int, WaitingTicket] = {}
        self._settled: list[int] = []
        self._ticked_at = 0.0
        ranks = [Rank(worker_id, 0) for worker_id in range(len(scene.fleet))]
        self._writers = [self.partition.table.writer_of(rank) for rank in ranks]

    def read_prompt(self, ask: RankRequest) -> ReadAheadPrompt:
        """Return the prompt as read from a body with hashes."""
        # Block numbers identify the whole prefix, so the array serves as both kinds of hashes.
        hashes = self.block_hashes[ask.chain]
        return ReadAheadPrompt(self._block_tokens, 0, Prompt(hashes, hashes, ask.prompt_tokens))

    def choose(self, ask: RankRequest, now: float) -> int | None:
        client = str(ask.session)
        request = SelectAndReserveRequest(
            model_name=MODEL,
            reservation_id=str(ask.number),
            session_id=client if self._setting.has_sessions else None,
            fairness_id=client if self._setting.has_flows else None,
            strict_priority=1 if ask.session == self._setting.urgent_client else None,
        )
        decision = self.selector.select_and_reserve(request, now, read_ahead=self.read_prompt(ask))
        if isinstance(decision, WaitingTicket):
            self._tickets[ask.number] = decision
            decision.on_settled = partial(self._settled.append, ask.number)
            return None
        work = decision.selection.effective_prefill_tokens
        self.claimed[ask.number] = ask.prompt_tokens - work
        return decision.selection.worker_id

    def join_world(self, world: ReplayWorld) -> None:
        """Read reports to callers from a world, and remove assumed blocks in its time."""
        self._histories = world.record.histories
        if self._knowledge.assumes:
            world.schedule_every(TURN_S, self._take_turn, world)

    def _take_turn(self, world: ReplayWorld) -> None:
        self.selector.followers.assumptions.run_turn(world.time)

    def first_token(self, number: int, now: float) -> None:
        if self._setting.reports:
            if self._knowledge.reports_cached:
                cached = self._histories[number].cached
                self.selector.followers.assumptions.report_cached(str(number), cached)
            self.selector.complete_prefill(str(number), now)

    def output_block(self, number: int, now: float) -> None:
        self.selector.add_output_block(str(number), None, now)

    def finished(self, number: int, now: float) -> None:
        if self._knowledge.reports_answers:
            self._report_answer(self._histories[number], now)
        self.selector.free_reservation(str(number), now)

    def _report_answer(self, history: RequestHistory, now: float) -> None:
        """Assume the blocks of an answer, as a report of its tokens does."""
        assumed, chain = self.partition.assumed, self.block_hashes[history.turn.chain]
        slot = self.partition.table.find_slot(Rank(history.rank, 0))
        assert assumed is not None
        assert slot is not None
        names = assumed.name_prompt(chain, chain)
        assumed.extend_prompt(
            slot, names, chain[history.turn.prompt_tokens // self._block_tokens :], now
        )

    def changed(self, rank: int, changes: Sequence[Change], now: float) -> None:
        if not self._knowledge.has_events:
            return
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
        settled = sorted(self._settled)
        self._settled.clear()
        for number in settled:
            decision = self._tickets.pop(number).outcome
            assert isinstance(decision, PlacementDecision), decision
            yield number, decision.selection.worker_id
