"""Connector to Kubernetes objects.  `spec.replicas` is authoritative, and read for each tick.

There is no watch, so no gap of a watch can be missed.  The next tick starts from changes by others;
a rollout of a changed object ends.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from msgspec.structs import replace

from select_service.net.kubernetes_session import KubernetesError
from select_service.planner.connectors.connector import (
    ConnectorDecision,
    ConnectorError,
    ConnectorStatus,
    ConnectorUnavailable,
    DesiredCounts,
    RoleOutcome,
    check_counts,
    same_outcome,
)
from select_service.planner.connectors.kube.api_requests import (
    CONFLICT,
    INVALID,
    KubernetesApi,
)
from select_service.planner.connectors.kube.leader_election import LeaderElection
from select_service.planner.connectors.kube.pod_replacement import PodReplacement, PodRules
from select_service.planner.connectors.kube.rollout import (
    CountsRollout,
    RemovedPod,
    has_surplus_pods,
    have_pods_ended,
)
from select_service.planner.connectors.kube.scale_down import ScaleDown, remaining_drain
from select_service.planner.connectors.kube.scale_target import (
    ScaleTarget,
    TargetState,
    find_object_path,
    find_served_model_fault,
    read_target_state,
    write_replicas,
)
from select_service.planner.connectors.worker_drain import WorkerDrainer
from select_service.planner.core.tick_input import REPLICAS_MAX, Role, RoleReplicas

log = logging.getLogger("select_service.planner.connectors")

GONE_WAIT_S_MAX = 1800.0
"""Maximum time that a raise waits for the pods of a reduced role, seconds."""
TAKE_BACK_S = 60.0
"""Time that workers stay drained for a count that could not be lowered, seconds."""
REPLACEMENT_FAULT_S = 120.0
"""Time for which a failed replacement is reported, seconds; it is tried again meanwhile."""
STEP_S = 2.0
"""Interval of steps in `wait`, seconds."""


class KubernetesConnector:
    """Connector of a deployment.

    election:     None means no other planner acts
    drainer:      None means pods end without a drain
    pods:         how pods are matched and replaced; None means by address, and never
    """

    def __init__(
        self,
        api: KubernetesApi,
        targets: Sequence[ScaleTarget],
        election: LeaderElection | None = None,
        drainer: WorkerDrainer | None = None,
        *,
        pods: PodRules | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._api = api
        self._targets = {target.role: target for target in targets}
        self._election = election
        self._pods = pods or PodRules()
        self._scale_down = ScaleDown(api, drainer, self._pods.worker_label, self._is_leader)
        self._replacement = PodReplacement(api, drainer, self._pods)
        self._replacement_fault = "", clock()
        self._clock = clock
        self._paths: dict[Role, str] = {}
        self._faults: dict[Role, str] = {}
        self._is_passing: dict[Role, bool] = {}
        self._rollout: CountsRollout | None = None
        self._last_replicas: dict[Role, int] = {}
        self._ending_since: dict[Role, float] = {}
        self._term = 0
        self._unswept_since: float | None = None
        """Time since which workers may drain without a decision of this planner.

        None if there are none.
        """
        if election is None:
            # A predecessor may have been killed in the middle of a drain, so the first action is a
            # sweep.
            self._unswept_since = clock()
        else:
            election.join_election()

    async def read(self) -> Mapping[Role, RoleReplicas]:
        """See Connector."""
        found = await self._read_targets(self._targets)
        if not found and self._targets:
            raise ConnectorUnavailable("; ".join(self._faults.values()))
        for role, standing in found.items():
            self._notice_foreign_change(role, standing)
        return {role: self._replicas_of(role, standing) for role, standing in found.items()}

    def _replicas_of(self, role: Role, standing: TargetState) -> RoleReplicas:
        """Return the replicas of a role, marked as in progress during its drain."""
        seen = standing.to_replicas()
        drain = None if self._rollout is None else self._rollout.drain
        if drain is None or drain.is_over or role not in drain.roles:
            return seen
        going = drain.fewer[role]
        return replace(
            seen, in_progress=True, startup_only=False, draining=going, draining_is_ready=True
        )

    def _notice_foreign_change(self, role: Role, standing: TargetState) -> None:
        """Log a change of the replicas by another actor."""
        before = self._last_replicas.get(role)
        self._last_replicas[role] = standing.replicas
        if before is not None and before != standing.replicas:
            fields = {"target": standing.target.description, "was": before, "is": standing.replicas}
            log.info("replicas changed by another actor", extra={"fields": fields})

    def faults(self) -> Mapping[Role, str]:
        """See Connector."""
        text, at = self._replacement_fault
        if not text or self._clock() - at >= REPLACEMENT_FAULT_S:
            return self._faults
        return {next(iter(self._targets)): text, **self._faults}

    async def _read_targets(self, roles: Mapping[Role, object]) -> dict[Role, TargetState]:
        """Return the state of the targets that can be read.

        Surplus pods at the first reading were reduced by an earlier planner.
        """
        asked = [role for role in roles if role in self._targets]
        answers = await asyncio.gather(*map(self._read_target, asked), return_exceptions=True)
        found: dict[Role, TargetState] = {}
        for role, answer in zip(asked, answers, strict=True):
            if isinstance(answer, KubernetesError):
                self._is_passing[role] = answer.is_transient
                self._faults[role] = f"{self._targets[role].description}: {answer}"
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[role] = answer
                self._faults.pop(role, None)
                # Its GPUs are not free yet, so raises of other roles must wait for these pods.
                if role not in self._last_replicas and not have_pods_ended(answer):
                    self._ending_since[role] = self._clock()
        return found

    async def _read_target(self, role: Role) -> TargetState:
        """Read the state of a target. Raises KubernetesError."""
        target = self._targets[role]
        if role not in self._paths:
            self._paths[role] = await find_object_path(self._api, target)
        return await read_target_state(self._api, target, self._paths[role])

    async def scale(self, wanted: DesiredCounts, lost: tuple[int, ...] = ()) -> ConnectorDecision:
        """See Connector."""
        decision = await self._scale_counts(wanted) if wanted else ConnectorDecision(roles={})
        if not lost or self._pods.replaces == "never" or not await self._try_to_lead():
            return decision
        result = await self._replacement.replace_workers(
            lost, (await self._read_targets(self._targets)).values()
        )
        self._replacement_fault = result.fault, self._clock()
        return replace(decision, replaced=result.replaced)

    async def _scale_counts(self, wanted: DesiredCounts) -> ConnectorDecision:
        """Scale to these counts."""
        check_counts(wanted)
        if not await self._try_to_lead():
            await self._abandon_rollout()
            holder = "" if self._election is None else self._election.holder
            return same_outcome(
                wanted, ConnectorStatus.NOT_LEADER, f"the lease is held by {holder!r}"
            )
        found = await self._read_targets(dict.fromkeys((*wanted, *self._ending_since)))
        rollout = self._plan_rollout(wanted, found)
        before = self._rollout
        if before is not None:
            # The new rollout decides from here on; steps of the old one must not interfere.
            before.stop_rollout(self._clock())
            self._schedule_sweep(before.removed_pods)
        try:
            await self._scale_down.choose_pods(rollout, before, found)
        except ConnectorUnavailable as error:
            for role in (*rollout.reduced_roles(), *rollout.raised_roles()):
                rollout.set_outcome(role, ConnectorStatus.FAILED, str(error))
            return ConnectorDecision(roles=dict(rollout.decided))
        self._rollout = rollout
        # Drains begin before anything is written, so that requests can finish.
        await self._scale_down.begin_drain(rollout, before)
        for role in rollout.reduced_roles():
            rollout.set_outcome(role, ConnectorStatus.DRAINING)
        self._hold_raises_for_unread(rollout)
        await self._advance_rollout(rollout, found)
        return ConnectorDecision(roles=dict(rollout.decided))

    def _plan_rollout(
        self, wanted: DesiredCounts, found: Mapping[Role, TargetState]
    ) -> CountsRollout:
        """Return the rollout of desired replicas."""
        rollout = CountsRollout(
            wanted=dict(wanted),
            before={role: found[role].replicas for role in wanted if role in found},
            decided={role: self._unread_outcome(role, count) for role, count in wanted.items()},
            began=self._clock(),
        )
        for role, standing in found.items():
            self._notice_foreign_change(role, standing)
        for role in rollout.before:
            rollout.set_outcome(role, ConnectorStatus.UNCHANGED)
        for role in rollout.reduced_roles():
            rollout.set_outcome(role, ConnectorStatus.DRAINING)
        for role in rollout.raised_roles():
            rollout.set_outcome(
                role, ConnectorStatus.WAITING, "waits until the reduced role has released its GPUs"
            )
        return rollout

    def _unread_outcome(self, role: Role, count: int) -> RoleOutcome:
        """Return the outcome of a role that could not be read."""
        fault = self._faults.get(
            role, "the deployment has no target for this role: add one under `connector`"
        )
        return RoleOutcome(wanted=count, status=ConnectorStatus.REFUSED, detail=fault)

    def _hold_raises_for_unread(self, rollout: CountsRollout) -> None:
        """Hold raises while a role to reduce cannot be read, as its GPUs are not free.

        A target never read before has no known replicas, and holds raises for this tick only.
        """
        for role, count in rollout.wanted.items():
            if role not in rollout.before:
                # A passing error hides an existing target; a permanent one has no GPUs to wait for.
                never = REPLICAS_MAX if self._is_passing.get(role, False) else 0
                if count < self._last_replicas.get(role, never):
                    self._hold_raises(rollout, role)

    def _hold_raises(self, rollout: CountsRollout, because_of: Role) -> None:
        """Mark the raises as failed because of a role that could not be reduced."""
        for role in rollout.raised_roles():
            if rollout.is_under_way(role):
                detail = f"{because_of.value} could not be reduced"
                rollout.set_outcome(role, ConnectorStatus.FAILED, detail)

    def _is_leader(self) -> bool:
        """Return whether this planner may write now."""
        return self._election is None or self._election.is_leader

    async def _try_to_lead(self) -> bool:
        """Renew or try the lease; return whether this planner leads."""
        if self._election is not None:
            await self._election.try_to_lead()
        return self._is_in_term()

    def _is_in_term(self) -> bool:
        """Return whether this planner leads.

        After a term of another leader the old rollout is void.
        """
        # Another planner may have written meanwhile, so the present counts are read anew.
        if self._election is not None and self._is_leader() and self._term != self._election.terms:
            self._term = self._election.terms
            self._rollout = None
            self._unswept_since = self._clock()
        return self._is_leader()

    def _schedule_sweep(self, going: Sequence[RemovedPod]) -> None:
        """Schedule a sweep for drains without a decision.

        An interrupted step, or a platform that removes other pods, leaves such drains.
        """
        if going and self._unswept_since is None:
            self._unswept_since = self._clock()

    async def _undo_stray_drains(self, found: Mapping[Role, TargetState]) -> None:
        """Make workers that drain without a decision serve again.

        This waits until the platform has chosen its pods, and is repeated until all targets were
        read and all selectors have confirmed.
        """
        since = self._unswept_since
        if since is None:
            return
        is_late = self._clock() - since >= GONE_WAIT_S_MAX
        clear = [each for each in found.values() if is_late or not has_surplus_pods(each)]
        going = () if self._rollout is None else self._rollout.remaining_pods()
        swept = await asyncio.gather(
            *(self._scale_down.undo_stray_drains(each, going) for each in clear)
        )
        if len(clear) == len(self._targets) and all(swept):
            self._unswept_since = None

    async def _abandon_rollout(self) -> None:
        """Undo drains after loss of the lease.

        Drains stay if the next leader may have begun to use them.
        """
        rollout, self._rollout = self._rollout, None
        if rollout is None or remaining_drain(rollout) is None or self._election is None:
            return
        # A lost renewal is not another leader: our own drains can still be undone safely.
        if self._election.is_ours:
            self._schedule_sweep(rollout.removed_pods)
            await self._scale_down.undo_drain(rollout)
        else:
            log.info("drains left to the new leader")

    async def _advance_rollout(
        self, rollout: CountsRollout, found: Mapping[Role, TargetState]
    ) -> None:
        """Run one step: reduce drained roles, and raise roles that wait for no pods."""
        if rollout.drain is not None and not rollout.drain.is_over:
            return
        self._forget_ended(found)
        reduced = [role for role in rollout.reduced_roles() if rollout.is_under_way(role)]
        self._ending_since |= dict.fromkeys(reduced, self._clock())
        await asyncio.gather(*(self._write_replicas(rollout, role, found) for role in reduced))
        for role in reduced:
            if not rollout.is_written(role):
                self._hold_raises(rollout, role)
        # Raising now would need GPUs that ending pods still hold.
        if self._ending_since:
            return
        raised = [role for role in rollout.raised_roles() if rollout.is_under_way(role)]
        await asyncio.gather(*(self._write_replicas(rollout, role, found) for role in raised))

    def _forget_ended(self, found: Mapping[Role, TargetState]) -> None:
        """Forget reduced roles after the end of their pods, or after the maximum wait."""
        for role, since in list(self._ending_since.items()):
            standing = found.get(role)
            if standing is not None and have_pods_ended(standing):
                del self._ending_since[role]
            elif self._clock() - since >= GONE_WAIT_S_MAX:
                del self._ending_since[role]
                fields = {"target": self._targets[role].description, "waited_s": GONE_WAIT_S_MAX}
                log.warning("pods to remove still exist", extra={"fields": fields})

    async def _write_replicas(
        self, rollout: CountsRollout, role: Role, found: Mapping[Role, TargetState]
    ) -> None:
        """Write the replicas of a role.

        On a conflict read and retry once, else leave it to the next tick.
        """
        standing = found.get(role)
        if standing is None:
            rollout.set_outcome(role, ConnectorStatus.FAILED, self._faults.get(role, "not there"))
            return
        # One retry: the resource version changes with every status update, so conflicts are common.
        for attempt in range(2):
            # A person or another controller has precedence: the next tick decides on the new
            # number.
            if standing.replicas != rollout.before[role]:
                rollout.set_outcome(
                    role, ConnectorStatus.FAILED, "the replicas were changed by another actor"
                )
                return
            if self._election is not None and not self._election.is_leader:
                rollout.set_outcome(role, ConnectorStatus.NOT_LEADER)
                return
            try:
                await write_replicas(self._api, standing, rollout.wanted[role])
            except KubernetesError as error:
                # INVALID is the answer to a failed JSON patch test, which is a conflict, too.
                if attempt == 0 and error.status in (CONFLICT, INVALID):
                    again = (await self._read_targets({role: None})).get(role)
                    if again is not None:
                        standing = again
                        continue
                self._record_failure(rollout, role, error)
                return
            rollout.set_outcome(role, ConnectorStatus.APPLIED)
            if rollout.removed_pods:
                self._unswept_since = self._clock()
            self._last_replicas[role] = rollout.wanted[role]
            return

    def _record_failure(self, rollout: CountsRollout, role: Role, error: KubernetesError) -> None:
        """Record the failure of a write."""
        self._faults[role] = f"{self._targets[role].description}: {error}"
        status = ConnectorStatus.FAILED if error.is_transient else ConnectorStatus.REFUSED
        rollout.set_outcome(role, status, str(error))

    async def wait(self, timeout_s: float) -> bool:
        """See Connector."""
        until = self._clock() + timeout_s
        while True:
            if await self._run_step():
                return True
            if self._clock() + STEP_S > until:
                return False
            await asyncio.sleep(STEP_S)

    async def _run_step(self) -> bool:
        """Run one step; return whether nothing is under way."""
        rollout = self._rollout
        if rollout is None or rollout.is_over:
            await self._undo_idle_drains()
            return True
        if not await self._try_to_lead():
            await self._abandon_rollout()
            return True
        if self._rollout is None:
            return True
        await self._scale_down.step_drain(rollout)
        roles = dict.fromkeys((*rollout.wanted, *self._ending_since))
        found = await self._read_targets(roles)
        await self._undo_stray_drains(found)
        await self._advance_rollout(rollout, found)
        return rollout.is_over

    async def _undo_idle_drains(self) -> None:
        """Undo drains without a decision while nothing is under way."""
        if self._election is not None:
            self._election.start_renewing()
        if not self._is_in_term():
            return
        rollout = self._rollout
        if rollout is not None and self._clock() - rollout.began >= TAKE_BACK_S:
            self._rollout = None
            self._schedule_sweep(rollout.removed_pods)
            await self._scale_down.undo_drain(rollout)
        if self._unswept_since is not None:
            await self._undo_stray_drains(await self._read_targets(self._targets))

    async def validate(self) -> None:
        """See Connector.  Names all unreadable targets, in one line."""
        found = await self._read_targets(self._targets)
        if len(found) < len(self._targets):
            raise ConnectorError("; ".join(self._faults.values()))
        if (fault := find_served_model_fault(found.values())) is not None:
            raise ConnectorError(fault)

    async def pause(self) -> None:
        """See Connector.  The lease is kept and renewed, so that no standby begins to act."""
        rollout, self._rollout = self._rollout, None
        if rollout is not None and self._is_leader():
            self._schedule_sweep(rollout.removed_pods)
            await self._scale_down.undo_drain(rollout)

    async def close(self) -> None:
        """See Connector.  The lease is released at once unless another deployment uses the same.

        Workers that drain without a decision serve again.
        """
        await self.pause()
        if self._election is not None:
            await self._election.leave_election()
        await self._scale_down.close()
        await self._api.close()
