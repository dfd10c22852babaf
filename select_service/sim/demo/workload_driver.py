"""Run of a workload through a service, with checks against the engines.

One call is in flight at a time, in the order of virtual time, so that a run differs from the
baselines only in the choices. KV events travel concurrently on their own sockets.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from select_service.sim.demo.conversations import ConversationWorkload
from select_service.sim.demo.demo_fleet import DemoEngines, DemoFleet, EventStreamTotals
from select_service.sim.demo.service_client import ServiceClient
from select_service.sim.engine.replay_world import RunRecord, StepKind, WorldStep

FINAL_PROMPTS_MAX = 50


@dataclass(slots=True)
class OverlapPredictions:
    """Comparison of predicted with really cached leading blocks of a rank, at the time of the
    answer.
    """

    exact: int = 0
    too_low: int = 0
    too_high: int = 0

    @property
    def total(self) -> int:
        return self.exact + self.too_low + self.too_high

    def count_prediction(self, predicted: int, held: int) -> None:
        """Count a comparison, in blocks."""
        self.exact += predicted == held
        self.too_low += predicted < held
        self.too_high += predicted > held


@dataclass(slots=True)
class ServiceRun:
    """Results of a run through the service, besides the record of the world."""

    live: OverlapPredictions = field(default_factory=OverlapPredictions)
    settled: OverlapPredictions = field(default_factory=OverlapPredictions)
    events: EventStreamTotals | None = None
    leaks: list[str] = field(default_factory=list)

    def find_problems(self) -> list[str]:
        """Return everything that must not happen; empty means a clean run."""
        assert self.events is not None
        found = list(self.leaks)
        if not self.events.caught_up:
            found.append("the service did not read all published KV events")
        if self.events.lost:
            found.append(f"the service lost {self.events.lost} event batches")
        if self.events.decode_errors:
            found.append(f"the service could not decode {self.events.decode_errors} events")
        # Live predictions may be wrong, because events arrive late; settled predictions may not.
        wrong = self.settled.total - self.settled.exact
        if wrong:
            found.append(
                f"{wrong} of {self.settled.total} overlaps are wrong after the events settled"
            )
        return found


class WorkloadDriver:
    """Sends the steps of a world to the service and checks its predictions."""

    def __init__(
        self,
        workload: ConversationWorkload,
        engines: DemoEngines,
        fleet: DemoFleet,
        client: ServiceClient,
    ) -> None:
        self._workload = workload
        self._engines = engines
        self._world = engines.make_world(workload)
        self._fleet = fleet
        self._client = client
        self.run = ServiceRun()

    @property
    def record(self) -> RunRecord:
        """Histories of the requests."""
        return self._world.record

    async def drive_world(
        self,
        on_step: Callable[[WorldStep], None],
        wait: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        """Drive the world to its end.  Raises CallFailed at the first refused call.

        wait: awaited with the virtual time of each call before the call; None means no pause
        """
        for step in self._world.open_steps(1.0):
            if step.kind is StepKind.KV_EVENTS:
                # Without a pause: other requests may change the same cache meanwhile.
                events = self._engines.caches[step.number].render_events(step.changes)
                self._fleet.publish_events(step.number, events)
            elif step.kind is not StepKind.RELEASED:
                if wait is not None:
                    await wait(self._world.time)
                await self._send_step(step)
                on_step(step)

    async def _send_step(self, step: WorldStep) -> None:
        session_index, turn_index = self._world.turn_of(step.number)
        session = self._workload.sessions[session_index]
        name = f"{session.name}-{turn_index}"
        match step.kind:
            case StepKind.CHOOSE:
                await self._choose_rank(step.number, name, session.prompt(turn_index))
            case StepKind.FIRST_TOKEN:
                await self._client.report_progress(name, "prefill_complete")
            case StepKind.OUTPUT_BLOCK:
                await self._client.report_progress(name, "output_block")
            case StepKind.FINISHED:
                await self._client.free_reservation(name)

    async def check_end_state(self) -> None:
        """Check the end state: no load, all events read, the overlap of every rank exact."""
        # First, before anything can expire by its time to live.
        self.run.leaks = await self._find_leaks()
        # Events must have settled before the overlaps are compared.
        self.run.events = await self._fleet.catch_up(self._client)
        # The last sessions are the most likely still cached.
        for session in self._workload.sessions[-FINAL_PROMPTS_MAX:]:
            scores = await self._client.fetch_overlap_scores(session.tokens.tolist())
            for row in scores.workers:
                rank_index = self._fleet.rank_index(row.worker_id, row.dp_rank)
                held = self._engines.engines[rank_index].pool.count_cached(session.chain)
                self.run.settled.count_prediction(row.device_blocks, held)

    async def _choose_rank(self, number: int, name: str, prompt: list[int]) -> None:
        choice = await self._client.select_and_reserve(name, prompt)
        rank_index = self._fleet.rank_index(choice.worker_id, choice.dp_rank)
        # Compared before the request changes the cache of the rank.
        pool = self._engines.engines[rank_index].pool
        held = pool.count_cached(self._world.rank_request(number).chain)
        self.run.live.count_prediction(choice.predicted_blocks, held)
        self._world.assign_rank(number, rank_index)

    async def _find_leaks(self) -> list[str]:
        return [
            f"worker {row.worker_id} rank {row.dp_rank} still has load: {row.active_requests} "
            f"requests, {row.potential_prefill_tokens} prefill tokens, "
            f"{row.potential_decode_blocks} blocks"
            for partition in await self._client.fetch_loads()
            for row in partition.loads
            if row.active_requests or row.potential_prefill_tokens or row.potential_decode_blocks
        ]
