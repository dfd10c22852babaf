"""Wiring of health checks to the world: canary requests, stored reference answers, log lines."""

from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.adapters.health import connection_prober, loop_lag
from select_service.adapters.health.canary_sender import CanarySender
from select_service.adapters.health.canary_targets import CanaryTargets
from select_service.adapters.health.connection_prober import ConnectionProber
from select_service.adapters.health.rank_state_log import RankStateLog
from select_service.adapters.persistence import health_file
from select_service.adapters.persistence.health_file import HealthFile
from select_service.adapters.probe_http import TimedHttpClient
from select_service.config.health_settings import HealthSettings
from select_service.core.health.fleet_health.health_service import HealthService
from select_service.core.periodic_task import PeriodicTask
from select_service.core.registry.fleet.fleet import WorkerFleet


class HealthRunner:
    """Runner of health checks.

    Belongs to the event loop; register its `tasks` with the scheduler.
    """

    def __init__(
        self,
        settings: HealthSettings,
        fitness: HealthService,
        fleet: WorkerFleet,
        client: TimedHttpClient,
        callbacks: GuardedCallbacks,
        mode: int,
    ) -> None:
        """Read the stored reference answers.  Checks begin with the first step.

        client: sender of the canaries
        mode: permission bits of the references file
        """
        # Looked up per model at run time: workers of new models may register later.
        targets = CanaryTargets(
            fleet, lambda model_name: settings.canaries.model_canaries(model_name).api
        )
        timeout_s = settings.rules.timeout_s
        self._canaries = CanarySender(fitness, targets, client, callbacks, timeout_s=timeout_s)
        self._connections = ConnectionProber(fitness.monitor, client, callbacks)
        self._file: HealthFile | None = None
        if settings.references is not None:
            self._file = HealthFile(settings.references, fitness.monitor.references, mode)
            self._file.restore_references()
        fitness.listeners.append(RankStateLog(fitness.monitor.counters))

    def periodic_tasks(self) -> list[PeriodicTask]:
        """Return the periodic tasks of health checking."""
        tasks = [
            PeriodicTask("canaries", loop_lag.MEASURE_INTERVAL_S, self._canaries.send_due),
            PeriodicTask("connections", connection_prober.STEP_S, self._connections.send_due),
        ]
        if self._file is not None:
            tasks.append(PeriodicTask("references", health_file.STEP_S, self._file.take_changes))
        return tasks

    async def stop(self) -> None:
        """Cancel running checks and write unsaved reference answers."""
        await self._canaries.stop()
        await self._connections.stop()
        if self._file is not None:
            await self._file.stop()
