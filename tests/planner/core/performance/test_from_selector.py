"""Tests of models that see only selectors' times, against the true speed of the engines."""

from random import Random

import pytest

from select_service.planner.core.performance.engine_capacity import EngineKind
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import EngineLimits, Role
from select_service.planner.replay.simulated_engine import EngineSpeed, SimulatedRequest
from select_service.planner.replay.simulated_fleet import FleetOptions, SimulatedFleet
from select_service.planner.replay.simulated_observation import SimulatedWindow

SPEED = EngineSpeed()
LIMITS = EngineLimits(max_num_batched_tokens=8192, max_num_seqs=256, max_kv_tokens=400_000)
WINDOW_S, SECONDS = 60.0, 300.0


def learnt_model(kind: EngineKind, roles: tuple[Role, ...], rate: float) -> EngineModel:
    """Return a model after five minutes of three engines per role."""
    options = FleetOptions(
        roles=roles, speed=dict.fromkeys(Role, SPEED), limits=dict.fromkeys(Role, LIMITS)
    )
    fleet = SimulatedFleet(options, dict.fromkeys(roles, 3), 0.0)
    model, window = EngineModel(kind, DeploymentSettings()), SimulatedWindow(0.5, 0.05, WINDOW_S)
    rng, now, due = Random(1), 0.0, WINDOW_S
    while now < SECONDS:
        now += rng.expovariate(rate)
        while due < now:
            fleet.advance_to(due)
            window.add_finished(due, fleet.done)
            fleet.done = []
            model.observe_traffic(window.read_traffic(due, WINDOW_S), due)
            due += WINDOW_S
        isl = int(rng.lognormvariate(7.5, 0.8)) + 10
        request = SimulatedRequest(now, isl, rng.randint(20, 300), isl)
        fleet.add_request(request, now)
        window.add_arrival(request)
        for passes in fleet.current_passes().values():
            window.add_passes(now, passes)
    return model


@pytest.mark.parametrize("rate", [1.0, 6.0])
@pytest.mark.parametrize(
    ("kind", "roles"),
    [
        ("prefill", (Role.PREFILL, Role.DECODE)),
        ("decode", (Role.PREFILL, Role.DECODE)),
        ("aggregated", (Role.DECODE,)),
    ],
)
def test_a_model_learns_from_selector_times(kind, roles, rate):
    model = learnt_model(kind, roles, rate)
    assert model.source == "selector"
    if kind != "decode":
        truth = SPEED.base_s + 3000 * SPEED.per_prefill_token_s
        assert model.prefill_s(3000, LIMITS) == pytest.approx(truth, rel=0.1)
    if kind != "prefill":
        truth = SPEED.base_s + 60_000 * SPEED.per_kv_token_s + 20 * SPEED.per_request_s
        assert model.decode_s(20, 60_000) == pytest.approx(truth, rel=0.2)
