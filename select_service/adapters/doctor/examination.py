"""Examination of some workers and of the service itself, within a time limit."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic
from typing import NamedTuple

from select_service.adapters.doctor.machine_facts import (
    LoopDelay,
    collect_machine_facts,
    read_cpu_counters,
)
from select_service.adapters.doctor.worker_examiner import WorkerExaminer
from select_service.adapters.health.loop_lag import MEASURE_INTERVAL_S
from select_service.core.doctor import service_findings, worker_findings
from select_service.core.doctor.facts import ServiceFacts
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.schemas.discovery import SourceView
from select_service.schemas.doctor import DoctorReport, Finding, Machine
from select_service.schemas.replicas import ReplicaPeer

CONCURRENT_WORKERS = 8
"""Maximum number of workers examined concurrently."""
TIME_S = 25.0
"""Time limit for all workers of an examination, in seconds.

Workers not done by then get a finding.
"""
MACHINE_S = 1.0
"""Minimum observation time of the host, in seconds."""


class ExaminationContext(NamedTuple):
    """Access to facts about the rest of the service."""

    version: str
    facts: Callable[[Machine], ServiceFacts]
    """Function that returns the service facts, without peers and sources."""
    peers: Callable[[], Sequence[ReplicaPeer]]
    sources: Callable[[], Sequence[SourceView]]


class Examination:
    """Doctor examination.  Belongs to the event loop."""

    def __init__(self, looking: WorkerExaminer, around: ExaminationContext) -> None:
        self._examiner = looking
        self._context = around

    async def examine_workers(
        self, workers: Sequence[RegisteredWorker], with_service: bool, probes: bool
    ) -> DoctorReport:
        """Examine workers and optionally the service; return the report.

        workers: workers sorted by id, a bounded number
        probes: True sends a prompt through each engine
        """
        begun = monotonic()
        about_workers = asyncio.create_task(self._examine_workers(workers, probes))
        report = DoctorReport(findings=[], examined=[], next=None, seconds=0.0)
        try:
            if with_service:
                report.findings += await self._examine_service(report)
            report.findings += await about_workers
        finally:
            # Workers are examined while the service is observed; an error there must not leave the
            # task.
            about_workers.cancel()
        report.examined = [worker.worker_id for worker in workers]
        report.seconds = round(monotonic() - begun, 3)
        return report

    # Workers.

    async def _examine_workers(
        self, workers: Sequence[RegisteredWorker], probes: bool
    ) -> list[Finding]:
        gate, until = asyncio.Semaphore(CONCURRENT_WORKERS), monotonic() + TIME_S
        found = await asyncio.gather(
            *(self._examine_worker(each, probes, gate, until) for each in workers)
        )
        return [finding for findings in found for finding in findings]

    async def _examine_worker(
        self, worker: RegisteredWorker, probes: bool, gate: asyncio.Semaphore, until: float
    ) -> list[Finding]:
        try:
            # The time limit includes the wait for the gate: it bounds the whole examination.
            async with asyncio.timeout(max(0.0, until - monotonic())), gate:
                facts = await self._examiner.examine(worker, probes)
        except TimeoutError:
            facts = self._examiner.known_facts(worker)._replace(
                is_cut_short=True, ranks=(), n_ranks=0
            )
        return worker_findings.find_worker_faults(facts)

    # The service itself.

    async def _examine_service(self, report: DoctorReport) -> list[Finding]:
        # CPU counters are cumulative: two readings around the observation give rates.
        before = await asyncio.to_thread(read_cpu_counters)
        peers = {peer.endpoint: peer for peer in self._context.peers()}
        async with _measure_loop_delay() as late:
            await asyncio.sleep(MACHINE_S)
        after = await asyncio.to_thread(read_cpu_counters)
        report.machine = await asyncio.to_thread(
            collect_machine_facts, self._context.version, _mean_delay(late), before, after
        )
        facts = self._context.facts(report.machine)._replace(
            peers=[
                _drop_momentary_divergence(peer, peers.get(peer.endpoint))
                for peer in self._context.peers()
            ],
            sources=self._context.sources(),
        )
        return service_findings.find_service_faults(facts)


def _drop_momentary_divergence(peer: ReplicaPeer, before: ReplicaPeer | None) -> ReplicaPeer:
    """Drop a divergence that exists only for a moment, while both replicas exchange new
    reservations.
    """
    if before is None or not before.divergence_reservations:
        peer.divergence_reservations = 0
    return peer


@contextlib.asynccontextmanager
async def _measure_loop_delay() -> AsyncIterator[list[float]]:
    """Measure the delay of event loop iterations inside the context.

    Yield the list of delays in seconds.
    """
    late: list[float] = []

    async def look() -> None:
        while True:
            due = monotonic() + MEASURE_INTERVAL_S
            await asyncio.sleep(MEASURE_INTERVAL_S)
            late.append(max(0.0, monotonic() - due))

    task = asyncio.create_task(look())
    try:
        yield late
    finally:
        task.cancel()


def _mean_delay(late: Sequence[float]) -> LoopDelay:
    return LoopDelay(1e3 * sum(late) / max(1, len(late)), 1e3 * max(late, default=0.0))
