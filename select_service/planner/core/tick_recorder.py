"""Diagnostics of a tick, from its plan and the state of the stages."""

from collections.abc import Mapping

from select_service.planner.core.diagnostics import RoleDiagnostics, TickDiagnostics
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.proposers.throughput_loop import ThroughputLoop
from select_service.planner.core.reasons import Reason
from select_service.planner.core.replicas.replica_counts import ReplicaInventory
from select_service.planner.core.settings import DeploymentSettings, replica_gpus, scaled_roles
from select_service.planner.core.tick_input import Role, count_serving
from select_service.planner.core.tick_plan import TickPlan


class TickRecorder:
    """Recorder of a deployment's ticks, which only reads the stages."""

    def __init__(
        self,
        models: Mapping[Role, EngineModel],
        inventory: ReplicaInventory,
        throughput: ThroughputLoop,
    ) -> None:
        self._models = models
        self._inventory = inventory
        self._throughput = throughput

    def record_tick(
        self,
        plan: TickPlan,
        final: Mapping[Role, int],
        reasons: tuple[Reason, ...],
        settings: DeploymentSettings,
    ) -> TickDiagnostics:
        """Return the diagnostics of a tick. final: counts after the cluster's budget"""
        traffic = plan.tick_input.traffic
        sizes = plan.throughput.sizes.values()
        return TickDiagnostics(
            now_s=plan.tick_input.now_s,
            run_load=plan.due.load,
            run_throughput=plan.due.throughput,
            roles={
                role: self._record_role(role, plan, final, settings)
                for role in scaled_roles(settings)
            },
            load_reason=plan.load.reason,
            throughput_reason=plan.throughput.reason,
            forecast=plan.throughput.forecast,
            reasons=reasons,
            rejected=plan.reconciled.rejected,
            set_dropped=plan.reconciled.set_dropped,
            plugins=plan.tick_input.plugin_calls,
            stale=self._throughput.is_stale,
            slo_out_of_reach=any(size.reason is Reason.SLO_OUT_OF_REACH for size in sizes),
            miss_correction=self._throughput.correction.miss_ratio,
            ttft_met=None if traffic is None else traffic.ttft_met,
            itl_met=None if traffic is None else traffic.itl_met,
            replace=plan.replace,
            degradation_level=plan.tick_input.degradation_level,
        )

    def _record_role(
        self, role: Role, plan: TickPlan, final: Mapping[Role, int], settings: DeploymentSettings
    ) -> RoleDiagnostics:
        """Return the diagnostics of a role."""
        now = None if plan.counts_now is None else plan.counts_now.roles[role]
        found = plan.tick_input.replicas.get(role)
        return RoleDiagnostics(
            num_gpu=replica_gpus(settings, role),
            ready=0 if now is None else now.ready,
            starting=0 if now is None else now.starting,
            floor=self._throughput.floors[role],
            model_source=self._models[role].source,
            sized=plan.throughput.sizes.get(role),
            load=plan.load.roles.get(role),
            reconciled=plan.reconciled.targets.get(str(role)),
            decided_by=plan.reconciled.deciders.get(str(role)),
            stabilised=None if plan.settled is None else plan.settled.stabilised.get(role),
            final=final.get(role),
            pending_s=0.0 if now is None else now.waiting.pending_s,
            startup_s=self._inventory.startup_seconds_of(role),
            lost=0 if now is None else now.lost,
            lost_workers=tuple(w.worker_id for w in self._inventory.losses.lost[role]),
            spares=0 if now is None else now.spares,
            serving=count_serving(found) if found is not None and found.draining else None,
            draining=0 if found is None else found.draining,
        )
