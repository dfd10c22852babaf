"""Prometheus in memory: series with samples, and the part of PromQL that the planner sends.

Values are those of the real engine (the tests compare both by promtool where installed):
`increase` and `rate` correct resets and extrapolate to the ends of the window.
"""

import operator
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from aiohttp import web

from tests.planner.runtime.serving import Answer

_TOKEN = re.compile(
    r'\s*("(?:[^"\\]|\\.)*"|\d+(?:\.\d+)?[smhd]?|[A-Za-z_:][A-Za-z0-9_:]*|=~|>=|[(){}\[\],/+=])'
)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Series(NamedTuple):
    """Series with its labels.

    samples: pairs (time, value), oldest first
    """

    name: str
    labels: dict[str, str]
    samples: list[tuple[float, float]]


Point = tuple[dict[str, str], float]
"""Labels and value of an instant."""


def scraped_series(
    name: str, values: list[float], *, every_s: float = 15.0, **labels: str
) -> Series:
    """Return a series scraped regularly from time 0 on."""
    return Series(name, labels, [(i * every_s, v) for i, v in enumerate(values)])


class FakePrometheus:
    """Fake that evaluates queries at `now_s` and records the queries in `asked`."""

    def __init__(self, series: list[Series], now_s: float) -> None:
        self.series, self.now_s = series, now_s
        self.asked: list[str] = []

    def answers(self) -> Answer:
        """Return a handler of the HTTP API."""

        def answer(request: web.Request) -> web.Response:
            assert request.path == "/api/v1/query"
            self.asked.append(request.query["query"])
            result = [
                {"metric": labels, "value": [self.now_s, _text(value)]}
                for labels, value in self.evaluate(request.query["query"])
            ]
            return web.json_response(
                {"status": "success", "data": {"resultType": "vector", "result": result}}
            )

        return answer

    def evaluate(self, query: str) -> list[Point]:
        """Return the instant vector of a query."""
        tokens, at = [], 0
        while at < len(query.rstrip()):
            found = _TOKEN.match(query, at)
            assert found is not None, query[at:]
            tokens.append(found[1])
            at = found.end()
        parser = _Parser(tokens, self)
        result = parser.parse_or()
        assert parser.at == len(tokens), tokens[parser.at :]
        assert isinstance(result, list)
        return result

    def select(self, name: str | None, matchers: list[tuple[str, str, str]]) -> Iterator[Series]:
        """Yield the series of a selector."""
        for each in self.series:
            labels = {"__name__": each.name, **each.labels}
            if name in (None, each.name) and all(_matches(labels, *one) for one in matchers):
                yield each


class _Parser:
    """Recursive-descent parser; an expression is a vector or a number."""

    def __init__(self, tokens: list[str], fake: FakePrometheus) -> None:
        self.tokens, self.fake, self.at = tokens, fake, 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.tokens[self.at]
        assert expected in (None, token), (expected, token)
        self.at += 1
        return token

    def parse_or(self) -> list[Point] | float:
        left = self.parse_compare()
        while self.peek() == "or":
            self.take()
            right = self.parse_compare()
            assert isinstance(left, list)
            assert isinstance(right, list)
            there = [labels for labels, _ in left]
            left = left + [each for each in right if each[0] not in there]
        return left

    def parse_compare(self) -> list[Point] | float:
        left = self.parse_sum()
        if self.peek() == ">=":
            self.take()
            right = self.parse_sum()
            assert isinstance(left, list)
            assert isinstance(right, float)
            return [each for each in left if each[1] >= right]
        return left

    def parse_sum(self) -> list[Point] | float:
        left = self.parse_product()
        while self.peek() == "+":
            self.take()
            left = _combine(operator.add, left, self.parse_product())
        return left

    def parse_product(self) -> list[Point] | float:
        left = self.parse_primary()
        while self.peek() == "/":
            self.take()
            left = _combine(_divide, left, self.parse_primary())
        return left

    def parse_primary(self) -> list[Point] | float:
        token = self.take()
        if token == "(":
            inner = self.parse_or()
            self.take(")")
            return inner
        if token[0].isdigit():
            return float(token)
        if token in ("sum", "avg", "count"):
            return self.parse_aggregation(token)
        return self.parse_range_function(token)

    def parse_aggregation(self, function: str) -> list[Point]:
        by: list[str] = []
        if self.peek() == "by":
            self.take()
            self.take("(")
            while self.peek() != ")":
                by.append(self.take())
                if self.peek() == ",":
                    self.take()
            self.take(")")
        self.take("(")
        inner = self.parse_or()
        self.take(")")
        assert isinstance(inner, list)
        groups: dict[tuple[tuple[str, str], ...], list[float]] = {}
        for labels, value in inner:
            key = tuple((label, labels[label]) for label in by if label in labels)
            groups.setdefault(key, []).append(value)
        merge: dict[str, Callable[[list[float]], float]] = {
            "sum": sum,
            "avg": lambda values: sum(values) / len(values),
            "count": lambda values: float(len(values)),
        }
        return [(dict(key), merge[function](values)) for key, values in groups.items()]

    def parse_range_function(self, function: str) -> list[Point]:
        self.take("(")
        name = None if self.peek() == "{" else self.take()
        matchers = []
        if self.peek() == "{":
            self.take()
            while self.peek() != "}":
                label, how, text = self.take(), self.take(), self.take()
                matchers.append((label, how, re.sub(r"\\(.)", r"\1", text[1:-1])))
                if self.peek() == ",":
                    self.take()
            self.take("}")
        self.take("[")
        window = self.take()
        self.take("]")
        self.take(")")
        range_s = float(window[:-1]) * _SECONDS[window[-1]]
        start, end = self.fake.now_s - range_s, self.fake.now_s
        result = []
        for each in self.fake.select(name, matchers):
            samples = [(t, v) for t, v in each.samples if start < t <= end]
            value = _over_range(function, samples, start, end)
            if value is not None:
                result.append((dict(each.labels), value))
        return result


def _over_range(
    function: str, samples: list[tuple[float, float]], start: float, end: float
) -> float | None:
    values = [value for _, value in samples]
    if function == "avg_over_time":
        return sum(values) / len(values) if values else None
    if function == "last_over_time":
        return values[-1] if values else None
    assert function in ("increase", "rate"), function
    if len(samples) < 2:
        return None
    first, last = samples[0][0], samples[-1][0]
    # After a reset the counter starts at 0, so the whole previous value is added.
    resets = sum(a for a, b in pairwise(values) if b < a)
    gained = values[-1] - values[0] + resets
    between = (last - first) / (len(samples) - 1)
    before, after = first - start, end - last
    # A gap of more than 1.1 scrapes means that the series began or ended there.
    before = before if before < between * 1.1 else between / 2
    after = after if after < between * 1.1 else between / 2
    if gained > 0 and values[0] >= 0:
        before = min(before, (last - first) * values[0] / gained)
    increase = gained * (last - first + before + after) / (last - first)
    return increase / (end - start) if function == "rate" else increase


def _matches(labels: dict[str, str], label: str, how: str, text: str) -> bool:
    value = labels.get(label, "")
    return value == text if how == "=" else re.fullmatch(text, value) is not None


def _divide(a: float, b: float) -> float:
    return a / b if b else (float("nan") if a == 0 else float("inf"))


def _combine(
    how: Callable[[float, float], float], left: list[Point] | float, right: list[Point] | float
) -> list[Point] | float:
    if isinstance(left, float):
        assert isinstance(right, list)
        return [(labels, how(left, value)) for labels, value in right]
    if isinstance(right, float):
        return [(labels, how(value, right)) for labels, value in left]
    others = {tuple(sorted(labels.items())): value for labels, value in right}
    pairs = ((labels, value, tuple(sorted(labels.items()))) for labels, value in left)
    return [(labels, how(value, others[key])) for labels, value, key in pairs if key in others]


def _text(value: float) -> str:
    return "NaN" if value != value else repr(value)
