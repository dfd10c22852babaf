"""EDGE: one examination: some workers, and the service itself, within a time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic
from typing import NamedTuple

from select_service.bodies.discovery import SourceView
from select_service.bodies.doctor import DoctorReport, Finding, Machine
from select_service.bodies.replicas import ReplicaPeer
from select_service.core.doctor import judging_service, judging_workers
from select_service.core.doctor.facts import ServiceFacts
from select_service.core.workers.catalog import Worker
from select_service.edge.doctor.machine import Late, cpu_reading, machine
from select_service.edge.doctor.workers import Looking
from select_service.edge.health.lateness import STEP_S

AT_ONCE = 8
"""Workers that are looked at together."""
TIME_S = 25.0
"""For all workers of an examination.  Who has not answered by then is a finding."""
MACHINE_S = 1.0
"""How long the host is looked at, at least."""


class Surroundings(NamedTuple):
    """What is known of the service elsewhere, asked for when it is wanted."""

    version: str
    facts: Callable[[Machine], ServiceFacts]
    """Without peers and sources."""
    peers: Callable[[], Sequence[ReplicaPeer]]
    sources: Callable[[], Sequence[SourceView]]


class Examination:
    """Belongs to the event loop."""

    def __init__(self, looking: Looking, around: Surroundings) -> None:
        self._looking = looking
        self._around = around

    async def of(self, workers: Sequence[Worker], with_service: bool, probes: bool) -> DoctorReport:
        """workers: by id, a bounded number.  probes: a prompt is sent through each engine."""
        begun = monotonic()
        about_workers = asyncio.create_task(self._workers(workers, probes))
        report = DoctorReport(findings=[], examined=[], next=None, seconds=0.0)
        try:
            if with_service:
                report.findings += await self._service(report)
            report.findings += await about_workers
        finally:
            about_workers.cancel()
        report.examined = [worker.worker_id for worker in workers]
        report.seconds = round(monotonic() - begun, 3)
        return report

    # --- workers

    async def _workers(self, workers: Sequence[Worker], probes: bool) -> list[Finding]:
        gate, until = asyncio.Semaphore(AT_ONCE), monotonic() + TIME_S
        found = await asyncio.gather(*(self._worker(each, probes, gate, until) for each in workers))
        return [finding for findings in found for finding in findings]

    async def _worker(
        self, worker: Worker, probes: bool, gate: asyncio.Semaphore, until: float
    ) -> list[Finding]:
        try:
            async with asyncio.timeout(max(0.0, until - monotonic())), gate:
                facts = await self._looking.looked_at(worker, probes)
        except TimeoutError:
            facts = self._looking.begun(worker)._replace(is_cut_short=True, ranks=(), n_ranks=0)
        return judging_workers.findings_of(facts)

    # --- the service

    async def _service(self, report: DoctorReport) -> list[Finding]:
        before = await asyncio.to_thread(cpu_reading)
        peers = {peer.endpoint: peer for peer in self._around.peers()}
        async with _lateness() as late:
            await asyncio.sleep(MACHINE_S)
        after = await asyncio.to_thread(cpu_reading)
        report.machine = await asyncio.to_thread(
            machine, self._around.version, _mean(late), before, after
        )
        facts = self._around.facts(report.machine)._replace(
            peers=[_steady(peer, peers.get(peer.endpoint)) for peer in self._around.peers()],
            sources=self._around.sources(),
        )
        return judging_service.findings_of(facts)


def _steady(peer: ReplicaPeer, before: ReplicaPeer | None) -> ReplicaPeer:
    """What differs only for a moment, while both say what they have just booked, is no matter."""
    if before is None or not before.divergence_reservations:
        peer.divergence_reservations = 0
    return peer


@contextlib.asynccontextmanager
async def _lateness() -> AsyncIterator[list[float]]:
    """Seconds by which turns are late inside."""
    late: list[float] = []

    async def look() -> None:
        while True:
            due = monotonic() + STEP_S
            await asyncio.sleep(STEP_S)
            late.append(max(0.0, monotonic() - due))

    task = asyncio.create_task(look())
    try:
        yield late
    finally:
        task.cancel()


def _mean(late: Sequence[float]) -> Late:
    return Late(1e3 * sum(late) / max(1, len(late)), 1e3 * max(late, default=0.0))
