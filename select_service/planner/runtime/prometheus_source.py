"""Traffic of a deployment from Prometheus, in place of selectors.

A query without a finite answer is unknown, never 0; a rate of 0 requires the counter itself to
exist. Needed values without any series are described, so that a wrong name is not silent.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.base.suggestions import printable_name
from select_service.net.http_client.http_error import HttpError
from select_service.net.tls.current_tls import ClientTls
from select_service.planner.config import PrometheusSourceConfig
from select_service.planner.core.stages import REQUESTS_MAX, TOKENS_MAX
from select_service.planner.core.tick_input import TrafficWindow
from select_service.planner.planner_http import PlannerHttpClient
from select_service.planner.runtime.prometheus_queries import (
    CENSUS_WINDOW,
    TrafficQueries,
    TrafficQuery,
)

SERIES_MAX = 10_000
"""Maximum series of an answer."""
SHOWN_SERIES_MAX = 5
"""Maximum number of models and namespaces in a message."""
WINDOW_TOLERANCE_S = 1.0


class _Sample(Struct):
    value: tuple[float, str]
    metric: dict[str, str] = {}


class _Data(Struct):
    result: Annotated[list[_Sample], msgspec.Meta(max_length=SERIES_MAX)]


class _Answer(Struct):
    status: str
    data: _Data


class QueriedValue(NamedTuple):
    """Answer of a query.

    has_series: whether there were series, even without a number
    """

    query: TrafficQuery
    number: float | None
    has_series: bool


class PrometheusTraffic:
    """Prometheus source of a deployment. Belongs to one event loop.

    tls:   None means the system's CAs
    clock: monotonic seconds
    """

    def __init__(
        self,
        source: PrometheusSourceConfig,
        model_name: str,
        tls: ClientTls | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._source = source
        self._queries = TrafficQueries(source, model_name)
        self._http = PlannerHttpClient(tls)
        self._clock = clock
        self._since = clock()
        self.nothing_found: str | None = None
        """Description of needed values that had no series over a whole window."""

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def read_traffic(self, window_s: float, *, is_whole: bool = True) -> TrafficWindow:
        """Return the last `window_s` seconds. Raises HttpError if Prometheus does not answer.

        is_whole: whether replicas are sized by the window; shorter windows may have too few scrapes
        """
        # PromQL has no fractions of a second, and no window of 0.
        window = max(1, round(window_s))
        queries = self._queries.for_window(window)
        values = await asyncio.gather(*map(self._query_value, queries))
        found: dict[str, float] = {}
        for value in values:
            if value.number is not None:
                _check_number(value.query, value.number)
                found.setdefault(value.query.field, value.number)
        if is_whole:
            self.nothing_found = await self._describe_missing(values, window)
        return replace(TrafficWindow(duration_s=window_s), **found)

    async def _describe_missing(self, values: Sequence[QueriedValue], window: int) -> str | None:
        """Describe needed values without series; None before a whole window has been observed."""
        missing = [each.query for each in values if each.query.is_needed and not each.has_series]
        requests = next(each.number for each in values if each.query.field == "requests")
        # Histograms appear with the first answer, so that a window of 0 requests may lack
        # histograms.
        if not missing or requests == 0.0:
            return None
        if self._clock() - self._since < window - WINDOW_TOLERANCE_S:
            return None
        fields = ", ".join(each.field for each in missing)
        text = f"found nothing in {window} s for {fields}, query {missing[0].text}"
        series = await self._query_series(self._queries.census())
        if not series:
            return (
                f"{text}; there are no such series of any model in {CENSUS_WINDOW}: check that "
                f"Prometheus scrapes the {self._source.source}s"
            )
        names = sorted({_describe_series(each.metric) for each in series})
        more = f" and {len(names) - SHOWN_SERIES_MAX} more" if len(names) > SHOWN_SERIES_MAX else ""
        return (
            f"{text}; in {CENSUS_WINDOW} there are series of {', '.join(names[:SHOWN_SERIES_MAX])}"
            f"{more}: check model_name, namespace, and that a window has at least two scrapes"
        )

    async def _query_value(self, query: TrafficQuery) -> QueriedValue:
        """Return the answer of a query, without a number unless it is finite. Raises HttpError."""
        series = await self._query_series(query.text)
        value = math.nan
        if series:
            try:
                value = float(series[0].value[1])
            except ValueError as error:
                raise _unreadable(error) from None
        return QueriedValue(query, value if math.isfinite(value) else None, bool(series))

    async def _query_series(self, query: str) -> list[_Sample]:
        """Return the series of a query. Raises HttpError."""
        text = await self._http.get(
            f"{self._source.url.rstrip('/')}/api/v1/query",
            {"query": query},
            token_file=self._source.token_file,
            timeout_s=self._source.timeout_s,
        )
        try:
            return msgspec.json.decode(text, type=_Answer).data.result
        except DECODE_ERRORS as error:
            raise _unreadable(error) from None


def _check_number(query: TrafficQuery, number: float) -> None:
    """Raise HttpError if no traffic has the number."""
    # Increases are never negative, and the sizing would overflow with larger numbers.
    most = REQUESTS_MAX if query.field == "requests" else TOKENS_MAX
    if not 0.0 <= number <= most:
        text = f"{query.field} of {number:g}, expected 0 to {most:g}, query {query.text}"
        raise HttpError("unreadable", f"Prometheus answered with {text}")


def _describe_series(labels: dict[str, str]) -> str:
    """Describe a series by its model and namespace."""
    parts = [labels.get("model"), labels.get("dynamo_namespace")]
    return " in ".join(printable_name(part) for part in parts if part) or "no model"


def _unreadable(error: Exception) -> HttpError:
    """Return the error of an answer that is none of Prometheus."""
    return HttpError("unreadable", f"Prometheus sent an unexpected answer: {error}")
