"""The forecast of a deployment with the libraries that are installed, and what it learns first."""

import logging
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

from select_service.planner.core.predict.forecast import TrafficForecast
from select_service.planner.core.predict.makers import chosen, makers
from select_service.planner.core.predict.trace import Asked, windows
from select_service.planner.core.settings import Settings
from select_service.request_trace import rows
from select_service.whole_file import open_regular

PROPHET_TIMEOUT_S = 10.0
_AXIS_START = "2024-01-01"
_TALKATIVE = ("cmdstanpy", "prophet", "prophet.plot")
"""Loggers that would say something of every fit."""


def traffic_forecast(settings: Settings, interval_s: float) -> TrafficForecast:
    """interval_s: between two points. Raises KeyError when the predictor is not installed."""
    prophet = None if find_spec("prophet") is None else InTime(prophet_fit)
    known = makers(
        settings, interval_s, arima=find_spec("statsmodels") is not None, prophet=prophet
    )
    return TrafficForecast(settings, interval_s, chosen(settings, known))


def warm_up(forecast: TrafficForecast, trace: Path, interval_s: float) -> int:
    """Show it a recording (Mooncake JSONL) first. How many windows that were.

    Raises TraceError, OSError.
    """
    open_regular(trace).close()  # a planner does not wait for who writes to a pipe
    asked = (Asked(row.timestamp, row.prompt_tokens, row.output_length) for _, row in rows(trace))
    shown = 0
    for window in windows(asked, interval_s):
        forecast.add(window)
        shown += 1
    forecast.end_of_warm_up()
    return shown


class InTime:
    """A fit that gets ten seconds. The caller waits: not for an event loop.

    A fit cannot be stopped: while one is late there is no second one, and no answer.
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
        """None: no answer in time, or the fit has failed."""
        if self._late is not None and self._late.is_alive():
            return None
        answers: list[list[float]] = []
        thread = Thread(
            target=lambda: answers.extend(self._answer(values, interval_s, steps)), daemon=True
        )
        thread.start()
        thread.join(self._timeout_s)
        self._late = thread
        return answers[0] if answers else None

    def _answer(
        self, values: Sequence[float], interval_s: float, steps: Sequence[float]
    ) -> list[list[float]]:
        try:
            return [self._fit(values, interval_s, steps)]
        except (ValueError, ArithmeticError, RuntimeError):
            return []


def prophet_fit(values: Sequence[float], interval_s: float, steps: Sequence[float]) -> list[float]:
    """The values so many steps after the last one, by Prophet's defaults, about 0.1 s."""
    for name in _TALKATIVE:
        logging.getLogger(name).disabled = True
    import pandas
    from prophet import Prophet

    start = pandas.Timestamp(_AXIS_START)
    past = range(len(values))
    model = Prophet(uncertainty_samples=0)
    model.fit(pandas.DataFrame({"ds": _times(start, interval_s, past), "y": list(values)}))
    then = _times(start, interval_s, [len(values) - 1 + each for each in steps])
    return [float(each) for each in model.predict(pandas.DataFrame({"ds": then}))["yhat"]]


def _times(start: Any, interval_s: float, at: Iterable[float]) -> list[Any]:
    """start: of pandas"""
    import pandas

    return [start + pandas.Timedelta(seconds=interval_s * each) for each in at]
