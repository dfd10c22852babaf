"""Platform in virtual time with replicas that fail, return and are replaced, under a planner."""

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from select_service.planner.core.reasons import Reason
from select_service.planner.core.tick_input import (
    ForwardPass,
    LostWorker,
    Role,
    RoleHealth,
    RoleReplicas,
)
from tests.planner.core.deployments import LIMITS, WARM, a_deployment, passes, tick_input, traffic

TICK_S = 5.0
STARTUP_S = 60.0
D = Role.DECODE


@dataclass
class Replica:
    """Replica of the platform.

    serves_at: end of the start-up, in s
    lost_at: time since when health has removed the replica; None means not lost
    """

    worker_id: int
    serves_at: float
    lost_at: float | None = None

    def serves(self, now):
        return self.lost_at is None and now >= self.serves_at


class LostWorld:
    """Platform and planner.

    is_virtual: whether `ready` counts serving replicas only; otherwise pods of lost replicas
    count
    requests: requests per minute, for the forecast
    kv_tokens: KV tokens of all engines together, for the load loop; 0 means warm engines,
    whatever their number
    """

    def __init__(self, seed, *, is_virtual, start=4, requests=90.0, kv_tokens=0, **settings):
        self.rng, self.is_virtual = Random(seed), is_virtual
        self.now, self.next_id, self.requests = 0.0, 1, requests
        given = {
            "mode": "agg",
            "enable_load_scaling": True,
            "replace_after_s": 120.0,
            "down_window_s": 120.0,
            "down_cooldown_s": 30.0,
            "startup_s": STARTUP_S,
            "ttft_ms": 2000.0,
            **settings,
        }
        self.kv_tokens = kv_tokens
        self.deployment = a_deployment(**given)
        self.budget = self.deployment.settings.max_gpu_budget
        self.replicas = [self._new(0.0) for _ in range(start)]
        self.spec = start
        self.replaced, self.changes, self.effects = [], [], None
        self.mismatches = 0

    def _new(self, serves_at):
        self.next_id += 1
        return Replica(self.next_id, serves_at)

    @property
    def serving(self):
        return [replica for replica in self.replicas if replica.serves(self.now)]

    @property
    def lost(self):
        return [replica for replica in self.replicas if replica.lost_at is not None]

    def fail(self, replica):
        replica.lost_at = self.now

    def read(self):
        """Return the replica counts as a connector does."""
        started = [r for r in self.replicas if self.now >= r.serves_at]
        ready = len(self.serving) if self.is_virtual else len(started)
        pending = max(0, self.spec - ready)
        return RoleReplicas(
            ready=ready,
            expected=self.spec,
            pending=pending,
            in_progress=pending > 0,
            startup_only=pending > 0,
            limits=LIMITS,
        )

    def health(self):
        lost = tuple(
            LostWorker(
                worker_id=r.worker_id,
                out_s=self.now - r.lost_at,
                state="unhealthy",
                cause="token_mismatch",
            )
            for r in self.lost
        )
        return {D: RoleHealth(serving=len(self.serving), lost=lost)}

    def tick(self):
        self.now += TICK_S
        due = self.deployment.tick_needs(self.now)
        window = due.traffic_s
        of = None if window is None else traffic(self.requests * window / 60.0, window)
        engines = {D: passes(D, [WARM] * len(self.serving))}
        if self.kv_tokens and self.serving:
            each = self.kv_tokens // len(self.serving)
            engines = {
                D: tuple(
                    ForwardPass(worker=str(r.worker_id), wall_s=0.05, decode_kv_tokens=each)
                    for r in self.serving
                )
            }
        tick = tick_input(self.now, {D: self.read()}, of=of, engines=engines)
        tick = type(tick)(
            **{f: getattr(tick, f) for f in tick.__struct_fields__} | {"health": self.health()}
        )
        self.effects = effects = self.deployment.run_tick(tick)
        self.mismatches += effects.diagnostics.load_reason is Reason.WORKER_COUNT_MISMATCH
        for worker_id in effects.replace:
            self.replace(worker_id)
        if effects.scale_to:
            self.scale(effects.scale_to[D])

    def replace(self, worker_id):
        (replica,) = [r for r in self.replicas if r.worker_id == worker_id]
        assert replica.lost_at is not None, "only a lost replica is replaced"
        assert not [r for r in self.replicas if r.serves_at > self.now], "one at a time"
        self.replaced.append(worker_id)
        self.replicas[self.replicas.index(replica)] = self._new(self.now + STARTUP_S)

    def scale(self, count):
        assert count * 1 <= max(self.budget, len(self.replicas)), "the budget is kept"
        if count != self.spec:
            self.changes.append((self.now, count - self.spec))
        self.spec = count
        while len(self.replicas) < count:
            self.replicas.append(self._new(self.now + STARTUP_S))
        # The platform removes first starting, then lost, then the last replicas.
        self.replicas.sort(key=lambda r: (r.serves_at > self.now, r.lost_at is not None))
        del self.replicas[count:]

    def run(self, seconds):
        until = self.now + seconds
        while self.now < until:
            self.tick()

    @property
    def reversals(self):
        directions = [change > 0 for _, change in self.changes]
        return sum(a != b for a, b in pairwise(directions))
