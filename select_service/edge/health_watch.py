"""What health needs of the world: canaries that are sent, references that are kept, log lines."""

from indexer.sockets.names import Names
from select_service.core.due_task import DueTask
from select_service.core.fitness.fitness import Fitness
from select_service.core.fleet.fleet import Fleet
from select_service.edge.health import lateness
from select_service.edge.health.canaries import Canaries
from select_service.edge.health.state_log import StateLog
from select_service.edge.health.targets import Targets
from select_service.edge.keeping import health_file
from select_service.edge.keeping.health_file import HealthFile
from select_service.edge.supervised import Callbacks
from select_service.settings.health_settings import HealthSettings
from select_service.tls.kept import ClientTls


class HealthWatch:
    """Belongs to the event loop, whose due tasks `tasks` are to be."""

    def __init__(
        self,
        settings: HealthSettings,
        fitness: Fitness,
        fleet: Fleet,
        names: Names,
        callbacks: Callbacks,
        tls: ClientTls | None,
        mode: int,
    ) -> None:
        """Reads what was kept.  Checks begin with the first step.

        tls: as in `http_post`;  mode: of the file of what is kept
        """
        targets = Targets(fleet, lambda model_name: settings.canaries.of(model_name).api)
        timeout_s = settings.rules.timeout_s
        self._canaries = Canaries(fitness, targets, names, callbacks, timeout_s=timeout_s, tls=tls)
        self._file: HealthFile | None = None
        if settings.references is not None:
            self._file = HealthFile(settings.references, fitness.monitor.book, mode)
            self._file.read()
        fitness.followers.append(StateLog(fitness.monitor.counts))

    def tasks(self) -> list[DueTask]:
        """What is to be done again and again."""
        tasks = [DueTask("canaries", lateness.STEP_S, self._canaries.step)]
        if self._file is not None:
            tasks.append(DueTask("references", health_file.STEP_S, self._file.step))
        return tasks

    async def stop(self) -> None:
        """Break checks off, and write what has not been written yet."""
        await self._canaries.stop()
        if self._file is not None:
            await self._file.stop()
