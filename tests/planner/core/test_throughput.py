"""Sizes of roles: what more demand, a higher promise and misses do to them."""

from hypothesis import given
from hypothesis import strategies as st

from scripts.playing.planner_given import GivenModel
from select_service.planner.core.contracts import Shape, Slo
from select_service.planner.core.inputs import Bins, Role, Traffic
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import Settings
from select_service.planner.core.throughput import Demand, Engine, sized
from tests.planner.core.deployments import FORWARD, LIMITS, a_deployment, both, replicas, told
from tests.planner.core.deployments import traffic as a_window

ENGINE = Engine(
    GivenModel("prefill", FORWARD["prefill"]), LIMITS, Slo(ttft_ms=500.0, itl_ms=20.0), False
)


def demand(long: float, rate: float, promised: float, attainment: float) -> Demand:
    """A part `long` of the prompts takes longer than the target."""
    lengths = Bins(means=(400.0, 16000.0), counts=(1.0 - long, long))
    mean = 400.0 * (1.0 - long) + 16000.0 * long
    traffic = Traffic(duration_s=60.0, requests=60.0 * rate, uncached_isl=lengths)
    return Demand(rate, Shape(mean, 150.0), traffic, promised, attainment)


def size(of: Demand) -> tuple[int, Reason]:
    found = sized(of, Role.PREFILL, ENGINE, Settings())
    assert found.replicas is not None
    assert found.spare is not None
    assert found.spare >= found.replicas
    return found.replicas, found.reason


@given(st.floats(0.001, 0.2), st.floats(0.5, 60), st.floats(0.5, 0.97), st.floats(0.5, 1.0))
def test_more_attainment_means_no_fewer_replicas_within_reach_or_beyond(
    long: float, rate: float, wanted: float, part: float
) -> None:
    less = size(demand(long, rate, 0.9, wanted * part))[0]
    more = size(demand(long, rate, 0.9, wanted))[0]
    reachable = 1.0 - long
    if (wanted <= reachable) == (wanted * part <= reachable):
        assert more >= less


def test_what_only_the_correction_puts_out_of_reach_is_no_broken_promise() -> None:
    within, beyond = demand(0.04, 20.0, 0.95, 0.95), demand(0.04, 20.0, 0.95, 0.98)
    assert size(within)[1] is Reason.SCALE
    assert size(beyond)[1] is Reason.SCALE
    assert size(demand(0.1, 20.0, 0.95, 0.95))[1] is Reason.SLO_OUT_OF_REACH


def test_misses_while_replicas_start_say_nothing_of_sizes() -> None:
    deployment = a_deployment()
    moving = both(2, 2) | {Role.PREFILL: replicas(2, 2)}
    late = a_window(300.0, ttft_met=0.1)
    first = deployment.tick(told(60.0, moving, of=late))
    second = deployment.tick(told(120.0, both(4, 2), of=late))
    third = deployment.tick(told(180.0, both(4, 2), of=late))
    factors = [each.diagnostics.miss_correction for each in (first, second, third)]
    assert factors[:2] == [1.0, 1.0]
    assert factors[2] > 1.0
