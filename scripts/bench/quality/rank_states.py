"""State of all ranks for a prompt, for rules that choose outside the core."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from select_service.core.array_types import Floats
from select_service.core.load.compiled.load_layout import N_TOTALS, PREFILL_TOKENS, REQUESTS
from select_service.sim.engine.core_router import CoreRouter, CoreScene
from select_service.sim.engine.kv_block_pool import Chain
from select_service.sim.engine.replay_world import RankRequest, ReplayWorld

SCRAPE_S = 0.05
"""Time between two readings of the engines' metrics."""


class RankStates(NamedTuple):
    """State of all ranks for a prompt, float64[n_ranks], in tokens unless named otherwise.

    own: prompt tokens that the rank does not hold;  work: the same, without those that live
        requests compute
    left: work of unfinished prefills;  booked: prompt tokens of these
    active: tokens of live requests, with those of the prompt
    queue, use: waiting requests and used share of the cache, as last read from the engines
    """

    isl: int
    block: int
    own: Floats
    work: Floats
    left: Floats
    booked: Floats
    requests: Floats
    active: Floats
    memory: Floats
    queue: Floats
    use: Floats


class PredictedBlocks:
    """Blocks of bookings, assumed on a rank for a time after their last booking.

    joins: whether they continue the announced blocks; otherwise the longer of both runs counts
    """

    def __init__(self, scene: CoreScene, ttl_s: float, joins: bool) -> None:
        self._ttl_s, self._joins = ttl_s, joins
        self._until: NDArray[np.float64] = np.full((len(scene.fleet), scene.n_blocks), -np.inf)

    def book(self, rank: int, chain: Chain, now: float) -> None:
        self._until[rank, chain] = now + self._ttl_s

    def extend_runs(self, matched: NDArray[np.int64], chain: Chain, now: float) -> Floats:
        """Return the leading blocks of each rank.  matched: the announced ones"""
        held = self._until[:, chain] > now
        if self._joins:
            held |= np.arange(len(chain)) < matched[:, None]
        runs = np.logical_and.accumulate(held, axis=1).sum(axis=1)
        longest: Floats = np.maximum(matched, runs).astype(float)
        return longest


class StateReader:
    """Reader of the states of ranks from the core of a router."""

    def __init__(self, router: CoreRouter, scene: CoreScene) -> None:
        self._router, self._block = router, scene.fleet[0].block_tokens
        self._memory = np.array([self._block * each.kv_blocks for each in scene.fleet], float)
        self._queue, self._use = np.zeros(len(scene.fleet)), np.zeros(len(scene.fleet))

    def read_metrics(self, world: ReplayWorld) -> None:
        """Start to read the metrics of the engines at intervals."""
        world.schedule_every(SCRAPE_S, self._scrape, world)

    def _scrape(self, world: ReplayWorld) -> None:
        for rank, engine in enumerate(world.engines):
            self._queue[rank] = len(engine.waiting)
            self._use[rank] = engine.pool.used_share

    def read_states(
        self, ask: RankRequest, now: float = 0.0, predicted: PredictedBlocks | None = None
    ) -> RankStates:
        """Return the states for a prompt.  predicted: blocks that also count as held"""
        router, n = self._router, len(self._memory)
        read, placer = router.read_prompt(ask), router.partition.placer
        # A placement fills the scratch arrays that the states are read from; its choice is dropped.
        placer.place_prompt(
            read.prompt, router.selector.decisions.config, router.partition.table.open_slots
        )
        matched = placer.scratch.matched[:n, -1].astype(np.int64)
        held = matched.astype(float)
        if predicted is not None:
            held = predicted.extend_runs(matched, ask.chain, now)
        leading = placer.scratch.leading[:n].astype(float)
        load = router.partition.load
        totals = load.totals.reshape(-1, N_TOTALS)[:n].astype(float)
        new = len(read.prompt.sequence_hashes) - leading
        return RankStates(
            isl=ask.prompt_tokens,
            block=self._block,
            own=np.maximum(1.0, ask.prompt_tokens - self._block * held),
            work=np.maximum(1.0, ask.prompt_tokens - self._block * np.maximum(held, leading)),
            left=load.prefills.work_left[:n].astype(float),
            booked=totals[:, PREFILL_TOKENS],
            requests=totals[:, REQUESTS],
            active=self._block * (load.compute_active_blocks()[:n] + new),
            memory=self._memory,
            queue=self._queue,
            use=self._use,
        )
