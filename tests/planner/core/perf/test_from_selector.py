"""What selectors time is enough: models that saw nothing else, against the engines' true speed."""

from random import Random

import pytest

from select_service.planner.core.inputs import Limits, Role
from select_service.planner.core.perf.capacity import Kind
from select_service.planner.core.perf.model import EngineModel
from select_service.planner.core.settings import Settings
from select_service.planner.replay.engine import Request, Speed
from select_service.planner.replay.fleet import Fleet, FleetOptions
from select_service.planner.replay.observing import Window

SPEED = Speed()
LIMITS = Limits(max_num_batched_tokens=8192, max_num_seqs=256, max_kv_tokens=400_000)
WINDOW_S, SECONDS = 60.0, 300.0


def learnt(kind: Kind, roles: tuple[Role, ...], rate: float) -> EngineModel:
    """After five minutes of three engines of each role."""
    options = FleetOptions(
        roles=roles, speed=dict.fromkeys(Role, SPEED), limits=dict.fromkeys(Role, LIMITS)
    )
    fleet = Fleet(options, dict.fromkeys(roles, 3), 0.0)
    model, window = EngineModel(kind, Settings()), Window(0.5, 0.05, WINDOW_S)
    rng, now, due = Random(1), 0.0, WINDOW_S
    while now < SECONDS:
        now += rng.expovariate(rate)
        while due < now:
            fleet.advance(due)
            window.finish(due, fleet.done)
            fleet.done = []
            model.observe_traffic(window.read(due, WINDOW_S), due)
            due += WINDOW_S
        isl = int(rng.lognormvariate(7.5, 0.8)) + 10
        request = Request(now, isl, rng.randint(20, 300), isl)
        fleet.arrive(request, now)
        window.arrive(request)
        for passes in fleet.passes().values():
            window.look(now, passes)
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
def test_a_model_of_what_a_selector_sees(kind: Kind, roles: tuple[Role, ...], rate: float) -> None:
    model = learnt(kind, roles, rate)
    assert model.source == "selector"
    if kind != "decode":
        truth = SPEED.base_s + 3000 * SPEED.per_prefill_token_s
        assert model.prefill_s(3000, LIMITS) == pytest.approx(truth, rel=0.1)
    if kind != "prefill":
        truth = SPEED.base_s + 60_000 * SPEED.per_kv_token_s + 20 * SPEED.per_request_s
        assert model.decode_s(20, 60_000) == pytest.approx(truth, rel=0.2)
