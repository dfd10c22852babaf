"""The core of the service as a chooser: the real `Selector`, fed and asked in virtual time."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from select_service.bodies.selection import SelectAndReserveRequest
from select_service.bodies.workers import WorkerRegistration
from select_service.core.admission.policy_classes import QueueRules
from select_service.core.admission.rules import AdmissionRules
from select_service.core.admission.waiting import Ticket
from select_service.core.decide.prompt import Prompt, PromptRead
from select_service.core.decide.router_config import RouterConfig
from select_service.core.decisions import Decision
from select_service.core.identity import Rank
from select_service.core.selector import Selector, SelectorConfig
from select_service.replaying.hardware import BLOCK_TOKENS, Fleet
from select_service.replaying.pool import Change, Stored
from select_service.replaying.world import Ask

MODEL = "m"
TICK_S = 1.0
"""Between looks at the clock of a queue, as in the service."""
Names = NDArray[np.uint64]
"""uint64[n_blocks]: what each block is called in events and prompts."""


class Scene(NamedTuple):
    """What a core is made for.  The indices of a run together hold n_blocks, at the most."""

    fleet: Fleet
    n_blocks: int
    seed: int

    def names(self) -> Names:
        """Every block's own hash, of its content and its place at once."""
        rng = np.random.default_rng([self.seed, 1])
        return rng.integers(1, 2**63, self.n_blocks + 1, np.int64).view(np.uint64)


class Setting(NamedTuple):
    """How a selector is used.

    reports: do callers say when prefill is over?
    queue:   which requests wait for room; None: all pass
    speeds:  do workers declare how fast they prefill?
    """

    reports: bool = True
    selector_number: int = 0
    queue: QueueRules | None = None
    speeds: bool = False


USUAL = Setting()
REFERENCE = RouterConfig(policy="reference")


def a_selector(scene: Scene, config: RouterConfig, setting: Setting) -> Selector:
    """With one worker for each rank of the fleet, whose id is its number."""
    seed = 1000 * scene.seed + setting.selector_number
    admission = AdmissionRules(queue=setting.queue)
    selector = Selector(
        SelectorConfig(config, admission, use_kv_events=False),
        lambda: PrefixIndex(scene.n_blocks + 1),
        rng=Random(seed),
    )
    for worker_id, hardware in enumerate(scene.fleet):
        speed = hardware.prefill_tokens_per_s if setting.speeds else None
        selector.register(
            WorkerRegistration(
                worker_id=worker_id,
                model_name=MODEL,
                endpoint=f"http://worker-{worker_id}",
                block_size=BLOCK_TOKENS,
                total_kv_blocks=hardware.kv_blocks,
                max_num_batched_tokens=hardware.batch_tokens,
                prefill_tokens_per_s=speed,
            )
        )
    return selector


class CoreChooser:
    """One selector with a policy of its own."""

    def __init__(
        self, scene: Scene, config: RouterConfig = REFERENCE, setting: Setting = USUAL
    ) -> None:
        self.selector = a_selector(scene, config, setting)
        (self.partition,) = self.selector.fleet.partitions.values()
        self.names = scene.names()
        self._reports = setting.reports
        self._tickets: dict[int, Ticket] = {}
        self._ticked_at = 0.0
        ranks = [Rank(worker_id, 0) for worker_id in range(len(scene.fleet))]
        self._writers = [self.partition.table.writer(rank) for rank in ranks]

    def prompt_of(self, ask: Ask) -> PromptRead:
        """As it is read from a body with hashes."""
        hashes = self.names[ask.chain]
        return PromptRead(BLOCK_TOKENS, False, Prompt(hashes, hashes, ask.prompt_tokens))

    def choose(self, ask: Ask, now: float) -> int | None:
        request = SelectAndReserveRequest(model_name=MODEL, reservation_id=str(ask.number))
        decision = self.selector.select_and_reserve(request, now, read=self.prompt_of(ask))
        if isinstance(decision, Ticket):
            self._tickets[ask.number] = decision
            return None
        return decision.selection.worker_id

    def first_token(self, number: int, now: float) -> None:
        if self._reports:
            self.selector.prefill_complete(str(number), now)

    def output_block(self, number: int, now: float) -> None:
        self.selector.output_block(str(number), None, now)

    def finished(self, number: int, now: float) -> None:
        self.selector.free(str(number), now)

    def changed(self, rank: int, changes: Sequence[Change], now: float) -> None:
        writer = self._writers[rank]
        for change in changes:
            if isinstance(change, Stored):
                blocks = self.names[change.chain[change.first : change.end]]
                parent = int(self.names[change.chain[change.first - 1]]) if change.first else None
                writer.store(Tier.GPU, parent, blocks, blocks)
            else:
                writer.remove(Tier.GPU, self.names[change.blocks])

    def released(self, now: float) -> Iterable[tuple[int, int]]:
        if not self._tickets:
            return
        self.selector.gate.look_for_progress(now)
        self.selector.settle(now)
        if now >= self._ticked_at + TICK_S:
            self._ticked_at = now
            self.selector.gate.tick(now)
        settled = [number for number, ticket in self._tickets.items() if ticket.outcome is not None]
        for number in settled:
            decision = self._tickets.pop(number).outcome
            assert isinstance(decision, Decision), decision
            yield number, decision.selection.worker_id
