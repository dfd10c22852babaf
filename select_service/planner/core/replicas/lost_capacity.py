"""Replicas that health has taken out: neither ready nor starting, and to be replaced.

A lost replica still occupies a place at the platform. Another replica is requested at once, within
the budget; after a time the platform replaces the lost replica itself.
"""

from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from select_service.planner.core.replicas.startups import count_starting
from select_service.planner.core.settings import NEVER_S, DeploymentSettings
from select_service.planner.core.tick_input import (
    LostWorker,
    Role,
    RoleHealth,
    RoleReplicas,
    TickInput,
)

RETRY_S = 60.0
"""Time before a replacement that did not begin is asked for again, seconds."""


class RoleReading(NamedTuple):
    """Reading of a role without lost replicas.

    lost:   lost replicas that the platform still counts
    spares: idle spares among the ready replicas
    """

    replicas: RoleReplicas
    lost: int = 0
    spares: int = 0


def split_reading(found: RoleReplicas, health: RoleHealth, lost: int) -> RoleReading:
    """Return the reading without lost replicas.

    Some platforms count a lost replica as ready (the pod runs), others as starting (no requests
    are served). Workers without a replica count as neither, and so are not lost capacity.
    lost: lost workers
    """
    if found.expected is None:
        # Without the platform's number the lost replicas are taken as counted.
        return RoleReading(found, lost, 0)
    hidden = max(0, found.ready - health.serving)
    spares_ready = min(health.spares, hidden)
    lost_ready = min(lost, hidden - spares_ready)
    starting = count_starting(found)
    lost_starting = min(lost - lost_ready, starting)
    spares_starting = min(health.spares - spares_ready, starting - lost_starting)
    here = lost_ready + lost_starting
    moved = lost_starting + spares_starting
    # With nothing else to wait for, the change is complete: the role can be decided again.
    is_settled = found.startup_only and moved > 0 and starting == moved
    reading = replace(
        found,
        ready=found.ready - lost_ready + spares_starting,
        expected=found.expected - here,
        pending=max(0, found.pending - moved),
        in_progress=found.in_progress and not is_settled,
        startup_only=found.startup_only and not is_settled,
    )
    return RoleReading(reading, here, spares_ready + spares_starting)


class LostReplicas:
    """Lost workers of a deployment over ticks, and the choice of workers to replace."""

    def __init__(self, settings: DeploymentSettings, roles: Iterable[Role]) -> None:
        self._settings = settings
        self._known: dict[Role, dict[int, LostWorker]] = {role: {} for role in roles}
        """Lost workers that are not being replaced, by role and worker id."""
        self._replaced: dict[int, float] = {}
        """Replaced workers, with the time, until the worker serves or has left."""
        self._tried: dict[int, float] = {}
        """Lost workers with a replacement that did not begin, with the time."""
        self._floors: dict[Role, int] = {}
        """Serving replicas before a loss, by role, until as many serve again or start."""
        self._before: dict[Role, int] = {}
        """Replicas that ran or started at the last tick, by role."""

    def read_roles(self, tick: TickInput) -> dict[Role, RoleReading]:
        """Return the readings of the roles without lost replicas; once a tick."""
        found = {}
        seen: set[int] = set()
        for role, known in self._known.items():
            reading, health = tick.replicas.get(role), (tick.health or {}).get(role)
            if reading is None:
                continue
            if health is None or not self._settings.replace_lost:
                # Without health data the present losses are unknown, and earlier losses stay.
                known.clear() if not self._settings.replace_lost else None
                found[role] = RoleReading(reading)
                continue
            seen |= {worker.worker_id for worker in health.lost}
            lost = {w.worker_id: w for w in health.lost if w.worker_id not in self._replaced}
            is_new = bool(lost.keys() - known.keys())
            self._known[role] = lost
            found[role] = split_reading(reading, health, len(lost))
            self._update_floor(role, found[role], is_new)
        if tick.health is not None:
            self._forget_replaced(seen, tick.now_s)
        return found

    def _update_floor(self, role: Role, reading: RoleReading, is_new: bool) -> None:
        """Keep the count before a loss as the floor, until as many serve or start again."""
        have = reading.replicas.ready + count_starting(reading.replicas)
        if is_new and reading.lost:
            self._floors[role] = max(self._floors.get(role, 0), self._before.get(role, have))
        if have >= self._floors.get(role, 0) or not reading.lost:
            self._floors.pop(role, None)
        self._before[role] = have

    def _forget_replaced(self, seen: set[int], now_s: float) -> None:
        """Forget replaced workers that serve, have left, or take too long to come back."""
        after_s = self._settings.replace_after_s + self._settings.scaling_max_wait
        for worker_id, at_s in list(self._replaced.items()):
            if worker_id not in seen or now_s - at_s >= after_s:
                del self._replaced[worker_id]
        self._tried = {w: at_s for w, at_s in self._tried.items() if w in seen}

    @property
    def floors(self) -> Mapping[Role, int]:
        """Replicas to be restored after a loss, by role."""
        return self._floors

    @property
    def lost(self) -> Mapping[Role, tuple[LostWorker, ...]]:
        """Lost workers by role, the longest out first."""
        return {
            role: tuple(sorted(known.values(), key=lambda w: (-w.out_s, w.worker_id)))
            for role, known in self._known.items()
        }

    def choose_replacement(self, now_s: float, may_replace: Mapping[Role, bool]) -> tuple[int, ...]:
        """Return the worker to replace now, if any, and remember the choice.

        may_replace: whether a role has a lost replica and no change under way
        """
        # One at a time: the next worker waits until the last serves again or has left.
        if self._replaced:
            return ()
        due = [
            worker
            for role, workers in self.lost.items()
            for worker in workers
            if may_replace.get(role, False) and self._is_due(worker, now_s)
        ]
        if not due:
            return ()
        chosen = max(due, key=lambda worker: (worker.out_s, -worker.worker_id))
        self._replaced[chosen.worker_id] = now_s
        for known in self._known.values():
            known.pop(chosen.worker_id, None)
        return (chosen.worker_id,)

    def _is_due(self, worker: LostWorker, now_s: float) -> bool:
        """Return whether a lost worker is to be replaced."""
        after_s = self._settings.replace_after_s
        is_tried = now_s - self._tried.get(worker.worker_id, -inf) < RETRY_S
        # A dead worker cannot come back by itself, so its replacement does not wait.
        is_dead = worker.state == "dead" and worker.out_s > 0.0 and after_s < NEVER_S
        return not is_tried and (is_dead or worker.out_s >= after_s)

    def undo_replacement(self, worker_ids: Iterable[int]) -> None:
        """Count workers as lost again, as the platform did not begin to replace them."""
        for worker_id in worker_ids:
            at_s = self._replaced.pop(worker_id, None)
            if at_s is not None:
                self._tried[worker_id] = at_s
