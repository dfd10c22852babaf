"""One run of the workload through a running service, checked against the engines as it goes.

One call is in flight at a time, in the order of virtual time, so that a run differs from the
baselines in the choice alone.  KV events travel on their own sockets meanwhile and arrive when
they arrive.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from select_service.simulator.client import SelectorClient
from select_service.simulator.fleet import EventTotals, Fleet
from select_service.simulator.workload import Workload
from select_service.simulator.world import SimRequest, Step, World

FINAL_PROMPTS_MAX = 50


@dataclass(slots=True)
class Predictions:
    """Predicted against really cached leading blocks of a rank, at the moment of the answer."""

    exact: int = 0
    too_low: int = 0
    too_high: int = 0

    @property
    def total(self) -> int:
        return self.exact + self.too_low + self.too_high

    def add(self, predicted: int, held: int) -> None:
        """Count one comparison, in blocks."""
        self.exact += predicted == held
        self.too_low += predicted < held
        self.too_high += predicted > held


@dataclass(slots=True)
class ServiceRun:
    """What a run through the service found, besides the world's own tally."""

    live: Predictions = field(default_factory=Predictions)
    settled: Predictions = field(default_factory=Predictions)
    events: EventTotals | None = None
    leaks: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Everything that must not happen; empty means the run was clean."""
        assert self.events is not None
        found = list(self.leaks)
        if not self.events.caught_up:
            found.append("the service did not catch up with the published KV events")
        if self.events.lost:
            found.append(f"the service counts {self.events.lost} lost event batches")
        if self.events.decode_errors:
            found.append(f"the service could not decode {self.events.decode_errors} events")
        wrong = self.settled.total - self.settled.exact
        if wrong:
            found.append(
                f"{wrong} of {self.settled.total} overlaps are wrong after the events settled"
            )
        return found


class Driver:
    """Carries the steps of a world to the service and notes how well it predicts."""

    def __init__(self, world: World, fleet: Fleet, client: SelectorClient) -> None:
        self._world = world
        self._fleet = fleet
        self._client = client
        self.run = ServiceRun()

    async def work_off(
        self,
        on_step: Callable[[Step], None],
        wait: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        """Drive the world to its end.  Raises CallFailed at the first call the service refuses.

        wait: awaited with the virtual time of each step before it is carried out; None: nothing is
        """
        while (happening := self._world.next_step()) is not None:
            if wait is not None:
                await wait(self._world.now_s)
            request = happening.request
            match happening.step:
                case Step.CHOOSE:
                    await self._choose(request)
                case Step.PREFILL_DONE:
                    await self._client.prefill_complete(request.name)
                case Step.OUTPUT_BLOCK:
                    await self._client.output_block(request.name)
                case Step.FINISHED:
                    await self._client.free(request.name)
            on_step(happening.step)

    async def audit(self, workload: Workload) -> None:
        """Check the end state: nothing booked, all events read, every rank's overlap exact."""
        self.run.leaks = await self._leaks()
        self.run.events = await self._fleet.catch_up(self._client)
        for prompt, keys in final_prompts(workload):
            for row in (await self._client.overlap_scores(prompt)).workers:
                rank_index = self._fleet.rank_index(row.worker_id, row.dp_rank)
                held = self._world.lines[rank_index].engine.held(keys)
                self.run.settled.add(row.device_blocks, held)

    async def _choose(self, request: SimRequest) -> None:
        choice = await self._client.select_and_reserve(request.name, request.prompt)
        rank_index = self._fleet.rank_index(choice.worker_id, choice.dp_rank)
        self.run.live.add(choice.predicted_blocks, self._world.held(rank_index, request))
        self._world.assign(request, rank_index)

    async def _leaks(self) -> list[str]:
        return [
            f"worker {row.worker_id} rank {row.dp_rank} still shows load: {row.active_requests} "
            f"requests, {row.potential_prefill_tokens} prefill tokens, "
            f"{row.potential_decode_blocks} blocks"
            for partition in await self._client.loads()
            for row in partition.loads
            if row.active_requests or row.potential_prefill_tokens or row.potential_decode_blocks
        ]


def final_prompts(workload: Workload) -> list[tuple[list[int], list[int]]]:
    """(token ids, chain keys) of the last sessions, whole: the likeliest to be cached still."""
    return [
        (session.tokens.tolist(), session.keys)
        for session in workload.sessions[-FINAL_PROMPTS_MAX:]
    ]
