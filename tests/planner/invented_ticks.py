"""Invented ticks, as a loop reports ticks to listeners."""

import math
import random

from select_service.planner.connectors.connector import ConnectorStatus, same_outcome
from select_service.planner.core.diagnostics import (
    LoadRecord,
    RoleDiagnostics,
    SizingRecord,
    StabiliserRecord,
    TickDiagnostics,
)
from select_service.planner.core.forecast_contracts import ForecastRecord
from select_service.planner.core.reasons import Reason
from select_service.planner.core.schedule import NextTick
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick import TickEffects
from select_service.planner.core.tick_input import (
    ForwardPass,
    LengthBins,
    PairWindow,
    Role,
    RoleReplicas,
    TickInput,
    TrafficWindow,
)
from select_service.planner.deployment_status import DeploymentStatus, DeploymentStatuses

START_S = 1_800_000_000.0

PAIRS = PairWindow(
    remote=30.0,
    local=10.0,
    local_uncached=LengthBins(means=(400.0,), counts=(10.0,)),
    remote_uncached=LengthBins(means=(2000.0,), counts=(30.0,)),
    moved_tokens=60_000.0,
    link_use=0.25,
    link_backlog_s=0.5,
)
"""Pairs of every window."""


def effects(now_s, roles=None, *, wished=None, advisory=False, **said):
    """Return the effects of a tick.

    roles: RoleDiagnostics by role; None means unknown replicas
    """
    values = {"run_load": True, "run_throughput": True, **said}
    if roles is None:
        roles, values["reasons"] = {}, (Reason.REPLICAS_UNKNOWN,)
    diagnostics = TickDiagnostics(now_s=now_s, roles=roles, **values)
    next_tick = NextTick(at_s=now_s + 5.0, run_load=True, run_throughput=False, traffic_s=None)
    scale_to = None if advisory else wished
    return TickEffects(
        scale_to=scale_to, wished=wished, next_tick=next_tick, diagnostics=diagnostics
    )


def a_role(ready, starting=0, final=None, **fields):
    return RoleDiagnostics(ready=ready, starting=starting, floor=1, final=final, **fields)


def a_tick(now_s, traffic=None, passes=None):
    return TickInput(
        now_s=now_s, replicas={Role.DECODE: RoleReplicas(ready=1)}, traffic=traffic, passes=passes
    )


def a_day(name="llama", ticks=2000, step_s=60.0, seed=1, settings=None, start_s=START_S):
    """Return a status after a sine of traffic, with an outage and starts that take five ticks."""
    status = DeploymentStatus(name, settings or DeploymentSettings(enable_load_scaling=True))
    add_ticks(status, ticks, step_s, seed, start_s)
    return status


def statuses_of(*names, ticks=20, settings=None):
    found = DeploymentStatuses()
    for name in names:
        found.changed(name, settings or DeploymentSettings(enable_load_scaling=True), START_S)
        add_ticks(found.find_status(name), ticks, 60.0, 1, START_S)
    return found


def add_ticks(status, ticks, step_s, seed, start_s):
    rng = random.Random(seed)
    ready, starting = {Role.PREFILL: 2, Role.DECODE: 4}, dict.fromkeys(Role, 0)
    for i in range(ticks):
        now_s = start_s + i * step_s
        rate = 20 + 15 * math.sin(i / 120 + seed) + rng.gauss(0, 1)
        if i % 5 == 0:
            ready = {role: ready[role] + starting[role] for role in Role}
            starting = dict.fromkeys(Role, 0)
        need = {Role.PREFILL: math.ceil(rate / 6), Role.DECODE: math.ceil(rate / 3)}
        have = {role: ready[role] + starting[role] for role in Role}
        wished = {role: n for role, n in need.items() if n > have[role] or n < have[role] - 1}
        outage = 0.4 < i / ticks < 0.43
        part = max(0.6, min(1.0, 0.97 + rng.gauss(0, 0.02)))
        traffic = TrafficWindow(
            duration_s=step_s,
            requests=None if outage else max(0.0, rate) * step_s,
            isl=1800.0,
            osl=220.0,
            ttft_s=None if outage else 0.2 + 0.3 * rng.random() ** 4,
            itl_s=None if outage else 0.03 + 0.01 * rng.random(),
            ttft_met=None if outage else part,
            itl_met=None if outage else min(1.0, part + 0.02),
            pairs=PAIRS,
        )
        roles = {role: _role(role, ready, starting, wished, need, rng) for role in Role}
        forecast = None if outage else _forecast(status.settings, rate, rng)
        status.add_tick(
            TickInput(now_s=now_s, replicas={}, traffic=traffic, passes=_passes(ready)),
            effects(
                now_s,
                roles,
                wished=wished or None,
                load_reason=Reason.SCALE_UP if wished else Reason.NO_CHANGE,
                throughput_reason=Reason.NO_TRAFFIC_DATA if outage else Reason.SET_LOWER_BOUND,
                forecast=forecast,
                reasons=(Reason.UP,) if wished else (),
            ),
            same_outcome(wished, ConnectorStatus.APPLIED) if wished else None,
        )
        for role, n in wished.items():
            if n > have[role]:
                starting[role] += n - have[role]
            else:
                ready[role], starting[role] = n, 0


def _role(role, ready, starting, wished, need, rng):
    return RoleDiagnostics(
        ready=ready[role],
        starting=starting[role],
        floor=1,
        sized=SizingRecord(replicas=need[role], reason=Reason.SET_LOWER_BOUND, engine_rps=6.0),
        load=LoadRecord(
            reason=Reason.NO_CHANGE,
            estimate_ms=rng.uniform(250, 520) if role is Role.PREFILL else rng.uniform(30, 48),
        ),
        stabilised=StabiliserRecord(wanted=float(need[role]), target=None, reason=Reason.UP),
        final=wished.get(role, ready[role] + starting[role]),
        startup_s=300.0,
    )


def _forecast(settings, rate, rng):
    requests = max(0.0, rate + rng.gauss(0, 1.5)) * settings.throughput_adjustment_interval_seconds
    return ForecastRecord(
        requests=requests,
        isl=1800.0,
        osl=220.0,
        demand_requests=requests * 1.2,
        predictor="kalman",
        error=0.08,
    )


def _passes(ready):
    return {
        role: tuple(
            ForwardPass(worker=f"{role.value}-{i}", queued_prefill_tokens=i, decode_kv_tokens=10)
            for i in range(count)
        )
        for role, count in ready.items()
    }
