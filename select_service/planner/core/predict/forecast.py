"""The forecast of a deployment's traffic: three series that stay in step, and last values."""

from collections.abc import Mapping
from math import ceil, isfinite

from msgspec import Struct

from select_service.planner.core.inputs import (
    HIT_RATE_MAX,
    Traffic,
)
from select_service.planner.core.predict.auto import Choice
from select_service.planner.core.predict.joint import Joint, Load
from select_service.planner.core.predict.series import Make
from select_service.planner.core.settings import Settings

LEAD_WINDOWS_MAX = 1000


class TrafficExpected(Struct, frozen=True, kw_only=True):
    """Requests and lengths of the window in which a replica that is started now takes part.

    demand_requests: what replicas are planned for, at least `requests`.
    error: mean loss of the predictor in use over its last points (0.1: about 10 % off).
    proven: how far demand goes beyond its forecasts is known, or no part of the plan.
    """

    requests: float
    isl: float
    osl: float
    demand_requests: float
    kv_hit_rate: float | None
    accept_length: float
    predictor: str
    error: float | None
    proven: bool


class TrafficForecast:
    """A point once an interval, by `add`, or by `skip` where the window is unknown."""

    def __init__(self, settings: Settings, interval_s: float, known: Mapping[str, Make]) -> None:
        """known: the predictors that run, one or, for `auto`, all"""
        self._interval_s = interval_s
        self._accept_max = settings.speculative_nextn + 1.0
        held = max(1, ceil(settings.down_window_s / interval_s))
        self._joints = {name: Joint(make, held) for name, make in known.items()}
        self._choice = Choice(self._joints)
        self._quantile = settings.forecast_quantile
        startup_s = settings.startup_s if settings.lead else 0.0
        self._lead = min(startup_s / interval_s, LEAD_WINDOWS_MAX)
        """Windows from the next one to the one that was asked for last."""
        self._is_idle = True
        """Nothing has been asked for yet."""
        self._isl: float | None = None
        self._osl: float | None = None
        self._hit_rate: float | None = None
        self._accept_length = 1.0

    def add(self, traffic: Traffic) -> None:
        """What came. Unknown requests are a window without a point."""
        self._keep_last(traffic)
        requests = _known(traffic.requests)
        if requests is None:
            self.skip()
            return
        if self._is_idle and requests == 0.0:
            self._each_skips()
            return
        self._is_idle = False
        variation = max(1.0, _known(traffic.arrival_variation) or 1.0)
        load = Load(requests, self._isl, self._osl, variation)
        for joint in self._joints.values():
            joint.add(load, 1 + round(self._lead))
        self._choice.review()

    def skip(self) -> None:
        """A window of which nothing is known: time goes on, without a point."""
        self._each_skips()

    def end_of_warm_up(self) -> None:
        """What follows is live: zeros before its first request are no points."""
        self._is_idle = True
        for joint in self._joints.values():
            joint.reset_idle_skip()

    def predict(self, lead_s: float) -> TrafficExpected:
        """For the window that begins `lead_s` from now. Asking changes no prediction."""
        lead = self._lead = min(max(0.0, lead_s) / self._interval_s, LEAD_WINDOWS_MAX)
        joint = self._joints[self._choice.name]
        next_, then = joint.predict(1.0), joint.predict(1.0 + lead)
        most = max(next_.requests, then.requests)
        factor = joint.shortfall.factor(self._quantile)
        is_of_last = joint.shortfall.is_of_last_points
        return TrafficExpected(
            requests=then.requests,
            isl=then.isl,
            osl=then.osl,
            demand_requests=max(most, factor * (joint.last if is_of_last else most)),
            kv_hit_rate=self._hit_rate,
            accept_length=self._accept_length,
            predictor=self._choice.name,
            error=joint.loss,
            proven=most <= 0.0 or self._quantile <= 0.5 or joint.shortfall.is_known,
        )

    def _each_skips(self) -> None:
        for joint in self._joints.values():
            joint.skip()

    def _keep_last(self, traffic: Traffic) -> None:
        """Lengths are of a window with requests; an idle one repeats the last."""
        hit_rate, accept = _known(traffic.kv_hit_rate), _known(traffic.accept_length)
        if hit_rate is not None:
            self._hit_rate = min(hit_rate, HIT_RATE_MAX)
        if accept is not None:
            self._accept_length = min(max(1.0, accept), self._accept_max)
        if traffic.requests:
            isl, osl = _known(traffic.isl), _known(traffic.osl)
            self._isl = self._isl if isl is None else isl
            self._osl = self._osl if osl is None else osl


def _known(value: float | None) -> float | None:
    """NaN is unknown; nothing that is counted is below 0."""
    return None if value is None or not isfinite(value) else max(0.0, value)
