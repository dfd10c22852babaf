"""Doctor of the running service; its modules are imported for the first examination."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from select_service.adapters.http_get import HttpClient
from select_service.api.service_context import ServiceContext
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.schemas.doctor import DoctorReport

if TYPE_CHECKING:
    from select_service.adapters.doctor.examination import Examination
    from select_service.adapters.persistence.state_file import StateFile


class ServiceExaminer(NamedTuple):
    """`ExaminerInterface` of a running service."""

    http: HttpClient
    state_file: "StateFile | None"

    async def examine_workers(
        self,
        service: ServiceContext,
        workers: Sequence[RegisteredWorker],
        with_service: bool,
        probes: bool,
    ) -> DoctorReport:
        """See `ExaminerInterface`."""
        # On a thread: importing takes longer than a loop iteration may.
        make_examination = await asyncio.to_thread(_import_examination)
        examination = make_examination(service, self.http, self.state_file)
        return await examination.examine_workers(workers, with_service, probes)


def _import_examination() -> (
    "Callable[[ServiceContext, HttpClient, StateFile | None], Examination]"
):
    from select_service.server.examine import make_examination

    return make_examination
