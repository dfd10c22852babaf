"""ARIMA by statsmodels, imported when the first model is fitted.

The order is searched on the first fit, by AICc over d <= 2 and p, q <= 3, stepwise (Hyndman and
Khandakar: from four orders to the best neighbour until none is better). Further points update the
fit. An order (0, d, 0) adds little to the last points; such a series is searched again in log1p.
The search is repeated every 50 points, and after the error has doubled that of `constant`.

Beside other predictors the effort is lower: a search is 25 to 50 fits, seconds of CPU.
"""

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from math import ceil, expm1, inf, isfinite, log1p
from typing import Any, NamedTuple

POINTS_MAX = 200
"""Number of the latest points used by a search."""
ORDER_MAX = 3
ERRORS_KEPT = 20
ERROR_RATIO_MAX = 2.0
ITERATIONS_MAX = 50
UPDATE_ITERATIONS_MAX = 10
FAILURES = (ValueError, ArithmeticError, IndexError, TypeError)
"""Errors of a fit that does not converge, including numpy's LinAlgError."""


class ArimaOrder(NamedTuple):
    """Order of a model. drift: constant term (d 0), or trend (d 1)"""

    p: int
    d: int
    q: int
    drift: bool


class SearchEffort(NamedTuple):
    """Effort of the search.

    starts:               orders (p, q) that are fitted first
    differences_max:      maximum of d
    is_stepwise:          whether better neighbours are followed
    search_again, refit:  number of points after which the order, or the coefficients, are fitted
                          again
    """

    starts: tuple[tuple[int, int], ...]
    differences_max: int
    is_stepwise: bool
    search_again: int
    refit: int


THOROUGH_SEARCH = SearchEffort(((0, 0), (1, 0), (0, 1), (2, 2)), 2, True, 50, 1)
QUICK_SEARCH = SearchEffort(((0, 0), (1, 0), (0, 1), (1, 1)), 1, False, 100, 10)


class FittedArima(NamedTuple):
    """Fitted model. results: results object of statsmodels"""

    results: Any
    order: ArimaOrder
    aicc: float
    in_log: bool


class Arima:
    """ARIMA model. Each answer after a new point fits or updates the model: 2 to 100 ms."""

    def __init__(self, effort: SearchEffort = THOROUGH_SEARCH) -> None:
        self._effort = effort
        self._values: deque[float] = deque(maxlen=POINTS_MAX)
        self._new: list[float] = []
        """Points that are not yet in the fit."""
        self._fitted: FittedArima | None = None
        self._searched = 0
        """Number of points since the last search."""
        self._refitted = 0
        """Number of points since coefficients were last fitted."""
        self._last_forecast: float | None = None
        self._errors: deque[tuple[float, float]] = deque(maxlen=ERRORS_KEPT)
        """Pairs of this model's error and the error of `constant`."""

    def push(self, value: float) -> None:
        """Add a point."""
        if self._last_forecast is not None:
            # The last point is the forecast of `constant`; both errors are needed for the ratio.
            self._errors.append((abs(self._last_forecast - value), abs(self._values[-1] - value)))
            self._last_forecast = None
        self._values.append(value)
        self._new.append(value)
        self._searched += 1

    def skip(self) -> None:
        """Ignore the gap: the series continues at the next point."""

    def ahead(self, steps: float) -> float | None:
        """Return the value so many steps ahead, or None if no model can be fitted."""
        # A fit of a constant series fails, as its variance is 0.
        if min(self._values) == max(self._values):
            return self._values[-1]
        # Imported before our own filters, as the import sets filters of warnings.
        import statsmodels.tsa.statespace.sarimax  # noqa: F401

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = self._forecast_steps(self._current_fit(), steps)
        except FAILURES:
            self._fitted = None
            return None
        # Only one-step forecasts can be compared with the next point.
        if steps == 1.0:
            self._last_forecast = value
        return value

    def _current_fit(self) -> FittedArima:
        """Return the model with all points, searched again if stale."""
        if self._fitted is None or self._is_stale():
            self._fitted = search_order(list(self._values), self._effort)
            self._searched = self._refitted = 0
            self._errors.clear()
        elif self._new:
            self._refitted += len(self._new)
            is_due = self._refitted >= self._effort.refit
            self._fitted = update_fit(self._fitted, self._new, refit=is_due)
            self._refitted = 0 if is_due else self._refitted
        self._new = []
        return self._fitted

    def _is_stale(self) -> bool:
        """Return whether the order must be searched again."""
        if self._searched >= self._effort.search_again:
            return True
        if len(self._errors) < ERRORS_KEPT:
            return False
        ours = sum(error for error, _ in self._errors)
        return ours > ERROR_RATIO_MAX * sum(error for _, error in self._errors)

    def _forecast_steps(self, fitted: FittedArima, steps: float) -> float:
        """Return the forecast, interpolated linearly between two points."""
        values = fitted.results.forecast(ceil(steps))
        last, part = float(values[-1]), ceil(steps) - steps
        value = last if part == 0.0 else part * float(values[-2]) + (1.0 - part) * last
        if not isfinite(value):
            raise ValueError("no forecast")
        return expm1(value) if fitted.in_log else value


def search_order(values: Sequence[float], effort: SearchEffort) -> FittedArima:
    """Search the order and return the fitted model.

    Raises one of FAILURES if no order can be fitted.
    """
    raw = search_best(values, effort, in_log=False)
    # log1p is undefined below -1, and only worth a second search if the first found no structure.
    if raw.order.p or raw.order.q or min(values) < 0.0:
        return raw
    try:
        return search_best([log1p(value) for value in values], effort, in_log=True)
    except FAILURES:
        return raw


def search_best(values: Sequence[float], effort: SearchEffort, *, in_log: bool) -> FittedArima:
    """Return the model of least AICc over d; fewer differences win among equals."""
    found = [
        best
        for d in range(effort.differences_max + 1)
        if (best := _best_with(values, d, effort, in_log)) is not None
    ]
    if not found:
        raise ValueError("no order can be fitted")
    return min(found, key=lambda each: each.aicc)


def _best_with(
    values: Sequence[float], d: int, effort: SearchEffort, in_log: bool
) -> FittedArima | None:
    """Return the best model with `d` differences, or None."""
    tried: dict[ArimaOrder, FittedArima | None] = {}
    best: FittedArima | None = None
    near = [
        ArimaOrder(p, d, q, drift) for p, q in effort.starts for drift in ((True, False)[d > 1 :])
    ]
    while near:
        better = best
        for order in near:
            if order not in tried:
                tried[order] = _fit_order(values, order, in_log)
            fitted = tried[order]
            if fitted is not None and (better is None or fitted.aicc < better.aicc):
                better = fitted
        if better is None or better is best:
            break
        best = better
        if not effort.is_stepwise:
            break
        near = [order for order in _neighbour_orders(best.order) if order not in tried]
    return best


def _neighbour_orders(order: ArimaOrder) -> Iterator[ArimaOrder]:
    """Yield the orders next to an order."""
    for p, q in ((-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (1, 1)):
        if 0 <= order.p + p <= ORDER_MAX and 0 <= order.q + q <= ORDER_MAX:
            yield order._replace(p=order.p + p, q=order.q + q)
    if order.d < THOROUGH_SEARCH.differences_max:
        yield order._replace(drift=not order.drift)


def _fit_order(values: Sequence[float], order: ArimaOrder, in_log: bool) -> FittedArima | None:
    """Fit an order; None if the fit fails or has more parameters than points."""
    from statsmodels.tsa.statespace.sarimax import SARIMAX

    # AICc divides by points minus parameters minus one.
    if order.p + order.q + order.drift + 2 >= len(values) - order.d:
        return None
    try:
        model = SARIMAX(
            values, order=(order.p, order.d, order.q), trend="c" if order.drift else "n"
        )
        results = model.fit(disp=0, maxiter=ITERATIONS_MAX)
        aicc = float(results.aicc)
    except FAILURES:
        return None
    return FittedArima(results, order, aicc if isfinite(aicc) else inf, in_log)


def update_fit(fitted: FittedArima, points: Sequence[float], *, refit: bool) -> FittedArima:
    """Return the model of the same order with further points.

    refit: whether coefficients are refitted
    """
    new = [log1p(max(0.0, point)) for point in points] if fitted.in_log else list(points)
    settings = {"disp": 0, "maxiter": UPDATE_ITERATIONS_MAX} if refit else None
    results = fitted.results.append(new, refit=refit, fit_kwargs=settings)
    return fitted._replace(results=results)
