"""Forecast of a deployment's traffic: three series in step, and last known values."""

from collections.abc import Mapping
from math import ceil, isfinite

from select_service.planner.core.forecast_contracts import ExpectedTraffic
from select_service.planner.core.forecasting.joint_predictor import JointPredictor, WindowLoad
from select_service.planner.core.forecasting.predicted_series import MakeSeries
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import HIT_RATE_MAX, TrafficWindow

LEAD_WINDOWS_MAX = 1000
JUDGED_POINTS_MIN = 5
"""Number of judged points before the first change of the choice."""
LOSS_RATIO_MAX = 0.9
"""Maximum loss of a better predictor, as part of the current predictor's loss."""


class TrafficForecast:
    """Forecast that receives a point once an interval by `add`, or a gap by `skip`."""

    def __init__(
        self, settings: DeploymentSettings, interval_s: float, predictors: Mapping[str, MakeSeries]
    ) -> None:
        """Create the predictors to run: a single one, or all for `auto`."""
        self._interval_s = interval_s
        self._accept_max = settings.speculative_nextn + 1.0
        held = max(1, ceil(settings.down_window_s / interval_s))
        self._joints = {name: JointPredictor(make, held) for name, make in predictors.items()}
        self._chosen = next(iter(self._joints))
        self._quantile = settings.forecast_quantile
        startup_s = settings.startup_s if settings.lead else 0.0
        self._lead = min(startup_s / interval_s, LEAD_WINDOWS_MAX)
        """Number of windows from the next to the last requested window."""
        self._is_idle = True
        """Whether no request has arrived yet."""
        self._isl: float | None = None
        self._osl: float | None = None
        self._hit_rate: float | None = None
        self._accept_length = 1.0

    def add(self, traffic: TrafficWindow) -> None:
        """Add a window. Without a number of requests the window is a gap."""
        self._store_last_known(traffic)
        requests = _known_value(traffic.requests)
        if requests is None:
            self.skip()
            return
        # Zeros before the first request say when the recording began, nothing about the traffic.
        if self._is_idle and requests == 0.0:
            self.skip()
            return
        self._is_idle = False
        variation = max(1.0, _known_value(traffic.arrival_variation) or 1.0)
        load = WindowLoad(requests, self._isl, self._osl, variation)
        for joint in self._joints.values():
            # Judged at the lead that plans really use: a predictor may be good for one window and
            # bad for five.
            joint.add(load, 1 + round(self._lead))
        self._review_choice()

    def skip(self) -> None:
        """Advance by an unknown window, without a point."""
        for joint in self._joints.values():
            joint.skip()

    def end_of_warm_up(self) -> None:
        """Start live traffic: zeros before its first request are not points."""
        self._is_idle = True
        for joint in self._joints.values():
            joint.reset_idle_skip()

    def predict(self, lead_s: float) -> ExpectedTraffic:
        """Return the traffic of the window that begins `lead_s` from now.

        Predictions do not change the state.
        """
        lead = self._lead = min(max(0.0, lead_s) / self._interval_s, LEAD_WINDOWS_MAX)
        joint = self._joints[self._chosen]
        # The plan must cover the time until the new replica is ready, not only the moment after.
        next_, then = joint.predict(1.0), joint.predict(1.0 + lead)
        most = max(next_.requests, then.requests)
        factor = joint.shortfall.demand_factor(self._quantile)
        is_of_last = joint.shortfall.is_of_last_points
        return ExpectedTraffic(
            requests=then.requests,
            isl=then.isl,
            osl=then.osl,
            # While the predictor repeats the last point, the factor was measured against that
            # point.
            demand_requests=max(most, factor * (joint.last if is_of_last else most)),
            kv_hit_rate=self._hit_rate,
            accept_length=self._accept_length,
            predictor=self._chosen,
            error=joint.mean_loss,
            proven=most <= 0.0 or self._quantile <= 0.5 or joint.shortfall.is_known,
        )

    def _review_choice(self) -> None:
        """Choose the predictor with the smallest recent loss; called once a point."""
        losses = {
            name: joint.mean_loss or 0.0
            for name, joint in self._joints.items()
            if joint.judged_points >= JUDGED_POINTS_MIN
        }
        if self._chosen not in losses:
            return
        best = min(losses, key=losses.__getitem__)
        # The margin avoids switches between predictors of equal quality, which would make plans
        # jump.
        if losses[best] < LOSS_RATIO_MAX * losses[self._chosen]:
            self._chosen = best

    def _store_last_known(self, traffic: TrafficWindow) -> None:
        """Store the last known values. Only windows with requests have lengths."""
        hit_rate, accept = _known_value(traffic.kv_hit_rate), _known_value(traffic.accept_length)
        if hit_rate is not None:
            self._hit_rate = min(hit_rate, HIT_RATE_MAX)
        if accept is not None:
            self._accept_length = min(max(1.0, accept), self._accept_max)
        if traffic.requests:
            isl, osl = _known_value(traffic.isl), _known_value(traffic.osl)
            self._isl = self._isl if isl is None else isl
            self._osl = self._osl if osl is None else osl


def _known_value(value: float | None) -> float | None:
    """Return the value, at least 0; None for None or NaN."""
    return None if value is None or not isfinite(value) else max(0.0, value)
