"""Replicas of Kubernetes objects.  The truth is `spec.replicas`, read anew for each tick.

Nothing is watched, so no gap of a watch can be missed.  What somebody else has changed is what the
next tick begins with; a rollout that it concerns ends.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from select_service.planner.connectors.base import (
    ConnectorError,
    ConnectorUnavailable,
    Counts,
    Decision,
    RoleDecision,
    Status,
    check_counts,
    everywhere,
)
from select_service.planner.connectors.draining import Drainer
from select_service.planner.connectors.kube.api import CONFLICT, INVALID, Api, KubeError
from select_service.planner.connectors.kube.lease import Election
from select_service.planner.connectors.kube.leaving import Leaving, still_draining
from select_service.planner.connectors.kube.rollout import Going, Rollout, has_gone, is_reducing
from select_service.planner.connectors.kube.target import (
    Standing,
    Target,
    base_path,
    look,
    write,
)
from select_service.planner.core.inputs import (
    REPLICAS_MAX,
    Replicas,
    Role,
)

log = logging.getLogger("select_service.planner.connectors")

GONE_WAIT_S_MAX = 1800.0
"""Seconds that a raise waits for the pods of what was reduced."""
TAKE_BACK_S = 60.0
"""Seconds that workers stay drained for a count that could not be lowered."""
STEP_S = 2.0
"""Between two looks while `wait` waits."""
WORKER_LABEL = "select-service/worker-id"


class KubernetesConnector:
    """One deployment.

    election: None: nobody else acts.  drainer: None: pods go as they are.  worker_label: of pods,
    with the id of their worker.
    """

    def __init__(
        self,
        api: Api,
        targets: Sequence[Target],
        election: Election | None = None,
        drainer: Drainer | None = None,
        *,
        worker_label: str = WORKER_LABEL,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._api = api
        self._targets = {target.role: target for target in targets}
        self._election = election
        self._leaving = Leaving(api, drainer, worker_label, self._is_leader)
        self._clock = clock
        self._paths: dict[Role, str] = {}
        self._faults: dict[Role, str] = {}
        self._is_passing: dict[Role, bool] = {}
        self._rollout: Rollout | None = None
        self._last: dict[Role, int] = {}
        self._giving: dict[Role, float] = {}
        self._term = 0
        self._unswept_since: float | None = None
        """Since when workers may drain for no wish of ours; None: there are none."""
        if election is None:
            self._unswept_since = clock()
        else:
            election.join()

    async def read(self) -> Mapping[Role, Replicas]:
        """See Connector."""
        found = await self._standings(self._targets)
        if not found and self._targets:
            raise ConnectorUnavailable("; ".join(self._faults.values()))
        for role, standing in found.items():
            self._notice(role, standing)
        return {role: self._seen(role, standing) for role, standing in found.items()}

    def _seen(self, role: Role, standing: Standing) -> Replicas:
        seen = standing.seen()
        drain = None if self._rollout is None else self._rollout.drain
        if drain is None or drain.is_over or role not in drain.roles:
            return seen
        return Replicas(
            ready=seen.ready,
            expected=seen.expected,
            pending=seen.pending,
            in_progress=True,
            limits=seen.limits,
        )

    def _notice(self, role: Role, standing: Standing) -> None:
        before = self._last.get(role)
        self._last[role] = standing.replicas
        if before is not None and before != standing.replicas:
            fields = {"target": standing.target.words, "was": before, "is": standing.replicas}
            log.info("somebody else has changed the replicas", extra={"fields": fields})

    def faults(self) -> Mapping[Role, str]:
        """See Connector."""
        return self._faults

    async def _standings(self, roles: Mapping[Role, object]) -> dict[Role, Standing]:
        """Of those that can be read.

        What has too many pods when it is seen first was reduced by a planner before this one.
        """
        asked = [role for role in roles if role in self._targets]
        answers = await asyncio.gather(*map(self._look, asked), return_exceptions=True)
        found: dict[Role, Standing] = {}
        for role, answer in zip(asked, answers, strict=True):
            if isinstance(answer, KubeError):
                self._is_passing[role] = answer.is_passing
                self._faults[role] = f"{self._targets[role].words}: {answer}"
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[role] = answer
                self._faults.pop(role, None)
                if role not in self._last and not has_gone(answer):
                    self._giving[role] = self._clock()
        return found

    async def _look(self, role: Role) -> Standing:
        target = self._targets[role]
        if role not in self._paths:
            self._paths[role] = await base_path(self._api, target)
        return await look(self._api, target, self._paths[role])

    async def scale(self, wanted: Counts) -> Decision:
        """See Connector."""
        check_counts(wanted)
        if not await self._leads():
            await self._give_up()
            holder = "" if self._election is None else self._election.holder
            return everywhere(wanted, Status.NOT_LEADER, f"the lease is held by {holder!r}")
        found = await self._standings(dict.fromkeys((*wanted, *self._giving)))
        rollout = self._planned(wanted, found)
        before = self._rollout
        if before is not None:
            before.stop(self._clock())
            self._sweep_later(before.going)
        try:
            await self._leaving.choose(rollout, before, found)
        except ConnectorUnavailable as error:
            for role in (*rollout.reduced(), *rollout.raised()):
                rollout.tell(role, Status.FAILED, str(error))
            return Decision(roles=dict(rollout.decided))
        self._rollout = rollout
        await self._leaving.begin(rollout, before)
        for role in rollout.reduced():
            rollout.tell(role, Status.DRAINING)
        self._hold_for_unread(rollout)
        await self._advance(rollout, found)
        return Decision(roles=dict(rollout.decided))

    def _planned(self, wanted: Counts, found: Mapping[Role, Standing]) -> Rollout:
        rollout = Rollout(
            wanted=dict(wanted),
            before={role: found[role].replicas for role in wanted if role in found},
            decided={role: self._unread(role, count) for role, count in wanted.items()},
            began=self._clock(),
        )
        for role, standing in found.items():
            self._notice(role, standing)
        for role in rollout.before:
            rollout.tell(role, Status.UNCHANGED)
        for role in rollout.reduced():
            rollout.tell(role, Status.DRAINING)
        for role in rollout.raised():
            rollout.tell(role, Status.WAITING, "until what is reduced has gone")
        return rollout

    def _unread(self, role: Role, count: int) -> RoleDecision:
        fault = self._faults.get(role, "the deployment has no target for this role")
        return RoleDecision(wanted=count, status=Status.REFUSED, detail=fault)

    def _hold_for_unread(self, rollout: Rollout) -> None:
        """What should be reduced and cannot even be read has given nothing yet.

        A target that was never read is none to count on, and holds nobody but for this tick.
        """
        for role, count in rollout.wanted.items():
            if role not in rollout.before:
                never = REPLICAS_MAX if self._is_passing.get(role, False) else 0
                if count < self._last.get(role, never):
                    self._hold(rollout, role)

    def _hold(self, rollout: Rollout, because_of: Role) -> None:
        for role in rollout.raised():
            if rollout.is_under_way(role):
                detail = f"{because_of.value} could not be reduced"
                rollout.tell(role, Status.FAILED, detail)

    def _is_leader(self) -> bool:
        return self._election is None or self._election.is_leader

    async def _leads(self) -> bool:
        if self._election is not None:
            await self._election.leads()
        return self._in_term()

    def _in_term(self) -> bool:
        """Do we lead?  Where others may have led meanwhile, our wish is void."""
        if self._election is not None and self._is_leader() and self._term != self._election.terms:
            self._term = self._election.terms
            self._rollout = None
            self._unswept_since = self._clock()
        return self._is_leader()

    def _sweep_later(self, going: Sequence[Going]) -> None:
        """A step that has ended in the middle, or a platform that takes others, leaves some."""
        if going and self._unswept_since is None:
            self._unswept_since = self._clock()

    async def _sweep(self, found: Mapping[Role, Standing]) -> None:
        """Workers that drain for nothing serve again, once it is clear which pods go all the same.

        As often as it takes, until all targets were seen and all selectors have heard it.
        """
        since = self._unswept_since
        if since is None:
            return
        is_late = self._clock() - since >= GONE_WAIT_S_MAX
        clear = [each for each in found.values() if is_late or not is_reducing(each)]
        going = () if self._rollout is None else self._rollout.still_going()
        swept = await asyncio.gather(*(self._leaving.sweep(each, going) for each in clear))
        if len(clear) == len(self._targets) and all(swept):
            self._unswept_since = None

    async def _give_up(self) -> None:
        """Another planner leads, or soon will: only what it cannot have begun is taken back."""
        rollout, self._rollout = self._rollout, None
        if rollout is None or still_draining(rollout) is None or self._election is None:
            return
        if self._election.is_ours:
            self._sweep_later(rollout.going)
            await self._leaving.take_back(rollout)
        else:
            log.info("workers still drain that the planner that leads now decides about")

    async def _advance(self, rollout: Rollout, found: Mapping[Role, Standing]) -> None:
        """One step: what has drained is reduced, and what waits for nobody any more is raised."""
        if rollout.drain is not None and not rollout.drain.is_over:
            return
        self._forget_gone(found)
        reduced = [role for role in rollout.reduced() if rollout.is_under_way(role)]
        self._giving |= dict.fromkeys(reduced, self._clock())
        await asyncio.gather(*(self._write(rollout, role, found) for role in reduced))
        for role in reduced:
            if not rollout.is_written(role):
                self._hold(rollout, role)
        if self._giving:
            return
        raised = [role for role in rollout.raised() if rollout.is_under_way(role)]
        await asyncio.gather(*(self._write(rollout, role, found) for role in raised))

    def _forget_gone(self, found: Mapping[Role, Standing]) -> None:
        """Those whose pods have all ended; one that could not be written has none too many."""
        for role, since in list(self._giving.items()):
            standing = found.get(role)
            if standing is not None and has_gone(standing):
                del self._giving[role]
            elif self._clock() - since >= GONE_WAIT_S_MAX:
                del self._giving[role]
                fields = {"target": self._targets[role].words, "waited_s": GONE_WAIT_S_MAX}
                log.warning("pods that should go are still there", extra={"fields": fields})

    async def _write(self, rollout: Rollout, role: Role, found: Mapping[Role, Standing]) -> None:
        """A conflict is looked at once more; then, as after any other error, the next tick."""
        standing = found.get(role)
        if standing is None:
            rollout.tell(role, Status.FAILED, self._faults.get(role, "not there"))
            return
        for attempt in range(2):
            if standing.replicas != rollout.before[role]:
                rollout.tell(role, Status.FAILED, "somebody else has changed the replicas")
                return
            if self._election is not None and not self._election.is_leader:
                rollout.tell(role, Status.NOT_LEADER)
                return
            try:
                await write(self._api, standing, rollout.wanted[role])
            except KubeError as error:
                if attempt == 0 and error.status in (CONFLICT, INVALID):
                    again = (await self._standings({role: None})).get(role)
                    if again is not None:
                        standing = again
                        continue
                self._failed(rollout, role, error)
                return
            rollout.tell(role, Status.APPLIED)
            if rollout.going:
                self._unswept_since = self._clock()
            self._last[role] = rollout.wanted[role]
            return

    def _failed(self, rollout: Rollout, role: Role, error: KubeError) -> None:
        self._faults[role] = f"{self._targets[role].words}: {error}"
        status = Status.FAILED if error.is_passing else Status.REFUSED
        rollout.tell(role, status, str(error))

    async def wait(self, timeout_s: float) -> bool:
        """See Connector."""
        until = self._clock() + timeout_s
        while True:
            if await self._stepped():
                return True
            if self._clock() + STEP_S > until:
                return False
            await asyncio.sleep(STEP_S)

    async def _stepped(self) -> bool:
        """Is nothing under way?"""
        rollout = self._rollout
        if rollout is None or rollout.is_over:
            await self._tidy()
            return True
        if not await self._leads():
            await self._give_up()
            return True
        if self._rollout is None:
            return True
        await self._leaving.step(rollout)
        roles = dict.fromkeys((*rollout.wanted, *self._giving))
        found = await self._standings(roles)
        await self._sweep(found)
        await self._advance(rollout, found)
        return rollout.is_over

    async def _tidy(self) -> None:
        """What drains for nothing serves again."""
        if self._election is not None:
            self._election.stand()
        if not self._in_term():
            return
        rollout = self._rollout
        if rollout is not None and self._clock() - rollout.began >= TAKE_BACK_S:
            self._rollout = None
            self._sweep_later(rollout.going)
            await self._leaving.take_back(rollout)
        if self._unswept_since is not None:
            await self._sweep(await self._standings(self._targets))

    async def validate(self) -> None:
        """See Connector.  Says which targets cannot be read, all in one line."""
        found = await self._standings(self._targets)
        if len(found) < len(self._targets):
            raise ConnectorError("; ".join(self._faults.values()))

    async def pause(self) -> None:
        """See Connector.  The lease is held and renewed: no spare begins to act."""
        rollout, self._rollout = self._rollout, None
        if rollout is not None and self._is_leader():
            self._sweep_later(rollout.going)
            await self._leaving.take_back(rollout)

    async def close(self) -> None:
        """See Connector.  The lease is free at once, if no other deployment uses it.

        Who drains for nothing serves again.
        """
        await self.pause()
        if self._election is not None:
            await self._election.leave()
        await self._leaving.close()
        await self._api.close()
