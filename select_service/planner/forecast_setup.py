"""Forecast of a deployment with the installed libraries, and its warm-up."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

from select_service.files.atomic_file import open_regular
from select_service.files.request_trace import RecordedRequest, TraceReader
from select_service.planner.core.forecasting.predictor_registry import (
    choose_predictors,
    make_predictors,
)
from select_service.planner.core.forecasting.traffic_forecast import TrafficForecast
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import TrafficWindow

PROPHET_TIMEOUT_S = 10.0
WINDOWS_MAX = 100_000
"""Limit of windows of a recording: 200 days of 3 minutes; later requests are ignored."""
_AXIS_START = "2024-01-01"
_NOISY_LOGGERS = ("cmdstanpy", "prophet", "prophet.plot")
"""Loggers that would report every fit."""


def build_traffic_forecast(settings: DeploymentSettings, interval_s: float) -> TrafficForecast:
    """Build the forecast. interval_s: seconds between two points

    Raises KeyError if the predictor is not installed.
    """
    prophet = None if find_spec("prophet") is None else FitWithTimeout(fit_prophet)
    known = make_predictors(
        settings, interval_s, arima=find_spec("statsmodels") is not None, prophet=prophet
    )
    return TrafficForecast(settings, interval_s, choose_predictors(settings, known))


def warm_up_forecast(forecast: TrafficForecast, trace: Path, interval_s: float) -> int:
    """Feed a request trace to the forecast and return the number of its windows.

    Raises TraceError, OSError.
    """
    open_regular(trace).close()  # refuses a pipe: its writer could block the start
    shown = 0
    for window in trace_windows(TraceReader(trace).read_requests(), interval_s):
        forecast.add(window)
        shown += 1
    forecast.end_of_warm_up()
    return shown


def trace_windows(
    requests: Iterable[RecordedRequest], interval_s: float
) -> Iterator[TrafficWindow]:
    """Yield every window from the first request to the last whole one, including idle windows.

    The last window is incomplete: omitted, unless there is no other.
    """
    sums: dict[int, tuple[int, float, float]] = {}
    for request in requests:
        window = int(request.at_s / interval_s)
        if window < WINDOWS_MAX:
            count, isl, osl = sums.get(window, (0, 0.0, 0.0))
            outputs = osl + (request.output_tokens or 0)
            sums[window] = count + 1, isl + request.prompt_tokens, outputs
    if not sums:
        return
    first, last = min(sums), max(sums)
    # The last window is cut off by the end of the recording, and would look like a drop.
    for window in range(first, max(last, first + 1)):
        count, isl, osl = sums.get(window, (0, 0.0, 0.0))
        yield TrafficWindow(
            duration_s=interval_s,
            requests=float(count),
            isl=isl / count if count else None,
            osl=osl / count if count else None,
        )


class FitWithTimeout:
    """Fit with a timeout of ten seconds. The caller blocks, so an event loop must not call.

    A fit cannot be stopped: while a fit is late there is no second fit, and no answer.
    """

    def __init__(
        self,
        fit: Callable[[Sequence[float], float, Sequence[float]], list[float]],
        timeout_s: float = PROPHET_TIMEOUT_S,
    ) -> None:
        self._fit = fit
        self._timeout_s = timeout_s
        self._late: Thread | None = None

    def __call__(
        self, values: Sequence[float], interval_s: float, steps: Sequence[float]
    ) -> list[float] | None:
        """Return the values, or None if the fit was late or failed."""
        # A second thread beside a late fit would pile up threads on a machine that is too slow
        # already.
        if self._late is not None and self._late.is_alive():
            return None
        answers: list[list[float]] = []
        # A daemon thread, because a hanging fit must not keep the process alive at its end.
        thread = Thread(
            target=lambda: answers.extend(self._fit_or_nothing(values, interval_s, steps)),
            daemon=True,
        )
        thread.start()
        thread.join(self._timeout_s)
        self._late = thread
        return answers[0] if answers else None

    def _fit_or_nothing(
        self, values: Sequence[float], interval_s: float, steps: Sequence[float]
    ) -> list[list[float]]:
        """Return the values in a list, empty if the fit failed."""
        try:
            return [self._fit(values, interval_s, steps)]
        except (ValueError, ArithmeticError, RuntimeError):
            return []


def fit_prophet(values: Sequence[float], interval_s: float, steps: Sequence[float]) -> list[float]:
    """Return the values so many steps after the last, by Prophet's defaults, about 0.1 s."""
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).disabled = True
    import pandas
    from prophet import Prophet

    # The dates are arbitrary: only distances matter, and a fixed start keeps fits reproducible.
    start = pandas.Timestamp(_AXIS_START)
    past = range(len(values))
    model = Prophet(uncertainty_samples=0)
    model.fit(pandas.DataFrame({"ds": _point_times(start, interval_s, past), "y": list(values)}))
    then = _point_times(start, interval_s, [len(values) - 1 + each for each in steps])
    return [float(each) for each in model.predict(pandas.DataFrame({"ds": then}))["yhat"]]


def _point_times(start: Any, interval_s: float, at: Iterable[float]) -> list[Any]:
    """Return the times of points. start: timestamp of pandas"""
    import pandas

    return [start + pandas.Timedelta(seconds=interval_s * each) for each in at]
