"""ARIMA by statsmodels, which is imported when the first model is fitted.

The order is searched on the first fit, by AICc over d <= 2 and p, q <= 3, stepwise (Hyndman and
Khandakar: from four orders to the best neighbour until none is better). Further points update the
fit. An order (0, d, 0) says little more than the last points do; such a series is searched again
in log1p. Searched anew every 50 points, and when it has become twice as bad as `constant`.

Beside other predictors it takes less pains (`QUICK`): a search is 25 to 50 fits, seconds of CPU.
"""

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from math import ceil, expm1, inf, isfinite, log1p
from typing import Any, NamedTuple

POINTS_MAX = 200
"""A search looks at the last so many."""
ORDER_MAX = 3
ERRORS = 20
WORSE = 2.0
ITERATIONS_MAX = 50
UPDATE_ITERATIONS_MAX = 10
FAILURES = (ValueError, ArithmeticError, IndexError, TypeError)
"""Of a fit that does not converge, numpy's LinAlgError among them."""


class Order(NamedTuple):
    """drift: with a constant (d 0), or with a trend (d 1)"""

    p: int
    d: int
    q: int
    drift: bool


class Effort(NamedTuple):
    """starts: orders (p, q) that are fitted first;  is_stepwise: and their neighbours, if better
    search_again, refit: after so many points"""

    starts: tuple[tuple[int, int], ...]
    differences_max: int
    is_stepwise: bool
    search_again: int
    refit: int


THOROUGH = Effort(((0, 0), (1, 0), (0, 1), (2, 2)), 2, True, 50, 1)
QUICK = Effort(((0, 0), (1, 0), (0, 1), (1, 1)), 1, False, 100, 10)


class Fitted(NamedTuple):
    """results: of statsmodels"""

    results: Any
    order: Order
    aicc: float
    in_log: bool


class Arima:
    """Each answer after a new point is a fit or an update of one: 2 to 100 ms."""

    def __init__(self, effort: Effort = THOROUGH) -> None:
        self._effort = effort
        self._values: deque[float] = deque(maxlen=POINTS_MAX)
        self._new: list[float] = []
        """Not yet in the fit."""
        self._fitted: Fitted | None = None
        self._searched = 0
        """Points since the last search."""
        self._refitted = 0
        """Points since coefficients were last fitted."""
        self._said: float | None = None
        self._errors: deque[tuple[float, float]] = deque(maxlen=ERRORS)
        """Ours, and that of `constant`."""

    @property
    def order(self) -> Order | None:
        """None before the first fit."""
        return None if self._fitted is None else self._fitted.order

    def push(self, value: float) -> None:
        if self._said is not None:
            self._errors.append((abs(self._said - value), abs(self._values[-1] - value)))
            self._said = None
        self._values.append(value)
        self._new.append(value)
        self._searched += 1

    def skip(self) -> None:
        """The series goes on at the next point."""

    def ahead(self, steps: float) -> float | None:
        if min(self._values) == max(self._values):
            return self._values[-1]
        import statsmodels.tsa.statespace.sarimax  # sets filters of warnings: before ours  # noqa: F401

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = self._forecast(self._current(), steps)
        except FAILURES:
            self._fitted = None
            return None
        if steps == 1.0:
            self._said = value
        return value

    def _current(self) -> Fitted:
        if self._fitted is None or self._is_stale():
            self._fitted = searched(list(self._values), self._effort)
            self._searched = self._refitted = 0
            self._errors.clear()
        elif self._new:
            self._refitted += len(self._new)
            is_due = self._refitted >= self._effort.refit
            self._fitted = updated(self._fitted, self._new, refit=is_due)
            self._refitted = 0 if is_due else self._refitted
        self._new = []
        return self._fitted

    def _is_stale(self) -> bool:
        if self._searched >= self._effort.search_again:
            return True
        if len(self._errors) < ERRORS:
            return False
        ours = sum(error for error, _ in self._errors)
        return ours > WORSE * sum(error for _, error in self._errors)

    def _forecast(self, fitted: Fitted, steps: float) -> float:
        """Between two points on the line through them."""
        values = fitted.results.forecast(ceil(steps))
        last, part = float(values[-1]), ceil(steps) - steps
        value = last if part == 0.0 else part * float(values[-2]) + (1.0 - part) * last
        if not isfinite(value):
            raise ValueError("no forecast")
        return expm1(value) if fitted.in_log else value


def searched(values: Sequence[float], effort: Effort) -> Fitted:
    """Raises one of FAILURES when nothing can be fitted."""
    raw = best_of(values, effort, in_log=False)
    if raw.order.p or raw.order.q or min(values) < 0.0:
        return raw
    try:
        return best_of([log1p(value) for value in values], effort, in_log=True)
    except FAILURES:
        return raw


def best_of(values: Sequence[float], effort: Effort, *, in_log: bool) -> Fitted:
    """The least AICc over d; fewer differences win among equals."""
    found = [
        best
        for d in range(effort.differences_max + 1)
        if (best := _best_with(values, d, effort, in_log)) is not None
    ]
    if not found:
        raise ValueError("no order can be fitted")
    return min(found, key=lambda each: each.aicc)


def _best_with(values: Sequence[float], d: int, effort: Effort, in_log: bool) -> Fitted | None:
    tried: dict[Order, Fitted | None] = {}
    best: Fitted | None = None
    near = [Order(p, d, q, drift) for p, q in effort.starts for drift in ((True, False)[d > 1 :])]
    while near:
        better = best
        for order in near:
            if order not in tried:
                tried[order] = _fit(values, order, in_log)
            fitted = tried[order]
            if fitted is not None and (better is None or fitted.aicc < better.aicc):
                better = fitted
        if better is None or better is best:
            break
        best = better
        if not effort.is_stepwise:
            break
        near = [order for order in _neighbours(best.order) if order not in tried]
    return best


def _neighbours(order: Order) -> Iterator[Order]:
    for p, q in ((-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (1, 1)):
        if 0 <= order.p + p <= ORDER_MAX and 0 <= order.q + q <= ORDER_MAX:
            yield order._replace(p=order.p + p, q=order.q + q)
    if order.d < THOROUGH.differences_max:
        yield order._replace(drift=not order.drift)


def _fit(values: Sequence[float], order: Order, in_log: bool) -> Fitted | None:
    """None: it cannot be fitted, or has more to fit than points."""
    from statsmodels.tsa.statespace.sarimax import SARIMAX

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
    return Fitted(results, order, aicc if isfinite(aicc) else inf, in_log)


def updated(fitted: Fitted, points: Sequence[float], *, refit: bool) -> Fitted:
    """The same order with further points.  refit: its coefficients follow"""
    new = [log1p(max(0.0, point)) for point in points] if fitted.in_log else list(points)
    settings = {"disp": 0, "maxiter": UPDATE_ITERATIONS_MAX} if refit else None
    results = fitted.results.append(new, refit=refit, fit_kwargs=settings)
    return fitted._replace(results=results)
