"""Virtual time with prefill and decode apart.

The client of a pair calls the prefill engine, reports its end, and calls the decode engine with the
reply.  That engine takes room for the prompt, copies the blocks that it lacks over the links, and
computes the first token; the prefill engine keeps the blocks until they are copied.
"""

from typing import NamedTuple, Protocol

from select_service.core.decision_maker import PlacementDecision
from select_service.core.placement.router_config import RouterConfig
from select_service.schemas.pairs import LocalRule, SelectPairAndReserveRequest
from select_service.sim.engine.block_streams import ReplayWorkload
from select_service.sim.engine.core_router import (
    MODEL,
    USUAL,
    CoreRouter,
    CoreScene,
)
from select_service.sim.engine.pair_fleet import PairFleet, TransferLinks
from select_service.sim.engine.replay_world import (
    EVENT_DELAY_S,
    RankRequest,
    ReplayRouter,
    ReplayWorld,
    RunRecord,
    StepKind,
    WorldStep,
    WorldSteps,
)
from select_service.sim.engine.scheduler_engine import EngineJob, StretchResult

WORK = RouterConfig(policy="work")
DECLARED_SPEEDS = USUAL._replace(speeds=True)


class RankPair(NamedTuple):
    """Ranks of both legs.  prefill: None means that `decode` does both"""

    prefill: int | None
    decode: int


class PairRouter(ReplayRouter, Protocol):
    """Router of pairs."""

    def choose_pair(self, ask: RankRequest, now: float) -> RankPair:
        """Return the ranks of both legs."""

    def prefill_complete(self, number: int, now: float) -> None:
        """Receive the end of a prefill on a rank of its own."""


class PairWorld(ReplayWorld):
    """State of a run with pairs."""

    def __init__(
        self,
        workload: ReplayWorkload,
        pairs: PairFleet,
        event_delay_s: float | None = EVENT_DELAY_S,
    ) -> None:
        super().__init__(workload, pairs.fleet, event_delay_s)
        self.links = TransferLinks(pairs)
        self._prefill_jobs: dict[int, EngineJob] = {}

    def run_pairs(self, chooser: PairRouter, sessions_per_s: float) -> RunRecord:
        """Run with sessions that start at their own times."""
        for step in self.open_steps(sessions_per_s):
            match step.kind:
                case StepKind.CHOOSE:
                    pair = chooser.choose_pair(self.rank_request(step.number), self.time)
                    if pair.prefill is not None:
                        self.record.histories[step.number].prefill_rank = pair.prefill
                    self.assign_rank(step.number, pair.decode)
                case StepKind.PREFILL_COMPLETE:
                    chooser.prefill_complete(step.number, self.time)
                case _:
                    self._follow_step(chooser, step)
        return self.record

    def _send_to_rank(self, number: int) -> WorldSteps:
        history = self.record.histories[number]
        if history.prefill_rank < 0:
            yield from super()._send_to_rank(number)
            return
        turn = history.turn
        prompt = turn.chain[: turn.prompt_tokens // self._block_tokens]
        job = EngineJob(number, prompt, turn.prompt_tokens, 1, is_kept=True)
        self._prefill_jobs[number] = job
        yield from self._add_job(history.prefill_rank, job)

    def _report_progress(self, rank: int, progress: StretchResult) -> WorldSteps:
        ended = [job for job in progress.finished if job.is_kept]
        if not ended and not any(
            self.record.histories[job.number].prefill_rank >= 0 for job in progress.first_tokens
        ):
            yield from super()._report_progress(rank, progress)
            return
        for job in ended:
            self.record.histories[job.number].cached = job.cached
            yield WorldStep(StepKind.PREFILL_COMPLETE, job.number)
            yield from self._call_decode_engine(job.number)
        firsts = []
        for job in progress.first_tokens:
            history = self.record.histories[job.number]
            if history.prefill_rank < 0:
                firsts.append(job)
            elif not job.is_kept:
                history.first_s = self.time
                yield WorldStep(StepKind.FIRST_TOKEN, job.number)
        others = StretchResult(
            firsts,
            [job for job in progress.blocks if not job.is_kept],
            [job for job in progress.finished if not job.is_kept],
        )
        yield from super()._report_progress(rank, others)

    def _call_decode_engine(self, number: int) -> WorldSteps:
        history = self.record.histories[number]
        turn = history.turn
        job = EngineJob(number, turn.chain, turn.prompt_tokens, turn.output_tokens, is_remote=True)
        yield from self._add_job(history.rank, job)

    def _plan_stretch(self, rank: int) -> WorldSteps:
        yield from super()._plan_stretch(rank)
        engine = self.engines[rank]
        begun, engine.begun_moves = engine.begun_moves, []
        for job in begun:
            history = self.record.histories[job.number]
            history.moved = job.prompt_tokens - job.cached
            ends = self.links.start_transfer(history.prefill_rank, rank, history.moved, self.time)
            self.schedule_at(ends, self._complete_transfer, job)

    def _complete_transfer(self, job: EngineJob) -> WorldSteps:
        history = self.record.histories[job.number]
        self.engines[history.prefill_rank].release_kept(self._prefill_jobs.pop(job.number))
        self.engines[history.rank].complete_move(job)
        yield from self._plan_again(history.rank)
        if self._began[history.prefill_rank] is None:
            # Jobs may have waited for the room of the copied blocks.
            yield from self._plan_again(history.prefill_rank)


class CorePairRouter(CoreRouter):
    """Router of pairs based on a selector."""

    def __init__(
        self,
        scene: CoreScene,
        config: RouterConfig = WORK,
        local: LocalRule = "auto",
    ) -> None:
        super().__init__(scene, config, DECLARED_SPEEDS)
        self._local: LocalRule = local

    def choose_pair(self, ask: RankRequest, now: float) -> RankPair:
        request = SelectPairAndReserveRequest(
            model_name=MODEL, reservation_id=str(ask.number), local=self._local
        )
        decision = self.selector.select_pair(request, now, read_ahead=self.read_prompt(ask))
        assert isinstance(decision, PlacementDecision)
        pair = decision.pair
        assert pair is not None
        prefill, decode = pair.legs
        return RankPair(None if pair.path == "local" else prefill.worker_id, decode.worker_id)

    def prefill_complete(self, number: int, now: float) -> None:
        self.selector.complete_prefill(str(number), now)
        # The end of a prefill leg is pending work.
        self.selector.run_pending(now)

    def first_token(self, number: int, now: float) -> None:
        self.selector.report_first_token(str(number), now)
        self.selector.run_pending(now)
