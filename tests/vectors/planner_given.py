"""Performance model with a given forward function, and the constant predictor."""

from collections.abc import Sequence

from select_service.planner.core.forecast_contracts import ExpectedTraffic
from select_service.planner.core.performance.engine_capacity import EngineKind, LinearIterationTime
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import TrafficWindow

NEVER = DeploymentSettings(load_min_observations=1_000_000_000)
"""Settings that need more samples than the model ever keeps."""


def given_model(kind: EngineKind, forward: Sequence[float] | None) -> EngineModel:
    """Return a model with iterations of given duration.

    forward: seconds (base, per prefill token, per KV token, per decoding request); None means
    never ready
    """
    return EngineModel(kind, NEVER, None if forward is None else LinearIterationTime(*forward))


class LastValue:
    """Constant predictor, which predicts the last observed traffic."""

    def __init__(self) -> None:
        self._isl = self._osl = self._requests = 0.0
        self._hit: float | None = None
        self._accept_on = 1.0

    def add(self, traffic: TrafficWindow) -> None:
        self._requests = traffic.requests or 0.0
        if self._requests:
            self._isl = traffic.isl if traffic.isl is not None else self._isl
            self._osl = traffic.osl if traffic.osl is not None else self._osl
        self._hit = self._hit if traffic.kv_hit_rate is None else traffic.kv_hit_rate
        if traffic.accept_length is not None:
            self._accept_on = traffic.accept_length

    def skip(self) -> None:
        """Keep the last value."""

    def predict(self, lead_s: float) -> ExpectedTraffic:
        return ExpectedTraffic(
            requests=self._requests,
            isl=self._isl,
            osl=self._osl,
            demand_requests=self._requests,
            kv_hit_rate=self._hit,
            accept_length=self._accept_on,
            predictor="constant",
        )
