"""Traffic of a deployment from Prometheus, in place of selectors.

Metric names: https://docs.nvidia.com/dynamo/latest/reference/observability/metrics-catalog
(families dynamo_frontend_* and dynamo_component_router_*). Only frontends have the model as a
label: routers are distinguished by their namespace. A query without a finite answer is unknown,
never 0; a rate of 0 requires the counter itself to exist.
"""

import asyncio
import math
from typing import Annotated

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.net.http_client.http_error import HttpError
from select_service.net.tls.current_tls import ClientTls
from select_service.planner.config import PrometheusSourceConfig
from select_service.planner.core.tick_input import TrafficWindow
from select_service.planner.planner_http import PlannerHttpClient

PREFIXES = {"frontend": "dynamo_frontend", "router": "dynamo_component_router"}


class _Sample(Struct):
    value: tuple[float, str]


class _Data(Struct):
    result: Annotated[list[_Sample], msgspec.Meta(max_length=10_000)]


class _Answer(Struct):
    status: str
    data: _Data


class PrometheusTraffic:
    """Prometheus source of a deployment. Belongs to one event loop.

    tls: None means the system's CAs
    """

    def __init__(
        self, source: PrometheusSourceConfig, model_name: str, tls: ClientTls | None = None
    ) -> None:
        self._source = source
        self._prefix = PREFIXES[source.source]
        self._model = _quote_label(model_name)
        namespace = source.namespace
        self._of_routers = (
            "" if namespace is None else f"{{dynamo_namespace={_quote_label(namespace)}}}"
        )
        self._of_source = self._of_routers
        if source.source == "frontend":
            self._of_source = f"{{model={self._model}}}"
        self._http = PlannerHttpClient(tls)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def read_traffic(self, window_s: float) -> TrafficWindow:
        """Return the last `window_s` seconds. Raises HttpError if Prometheus does not answer."""
        # PromQL has no fractions of a second, and no window of 0.
        window = f"{max(1, round(window_s))}s"
        queries = {
            "requests": self._increase_query("requests_total", window),
            "isl": self._mean_query("input_sequence_tokens", window),
            "osl": self._mean_query("output_sequence_tokens", window),
            "kv_hit_rate": self._mean_query(
                "kv_hit_rate", window, PREFIXES["router"], self._of_routers
            ),
            "accept_length": self._accept_length_query(window),
            "ttft_s": self._mean_query("time_to_first_token_seconds", window),
            "itl_s": self._mean_query("inter_token_latency_seconds", window),
        }
        values = await asyncio.gather(*map(self._query_value, queries.values()))
        found = dict(zip(queries, values, strict=True))
        return replace(TrafficWindow(duration_s=window_s), **found)

    def _increase_query(self, name: str, window: str) -> str:
        """Return the query of a counter's increase."""
        return f"sum(increase({self._prefix}_{name}{self._of_source}[{window}]))"

    def _mean_query(
        self, name: str, window: str, prefix: str | None = None, labels: str | None = None
    ) -> str:
        """Return the query of a histogram's mean."""
        series = f"{self._prefix if prefix is None else prefix}_{name}"
        by = self._of_source if labels is None else labels
        total = f"sum(increase({series}_sum{by}[{window}]))"
        return f"{total} / sum(increase({series}_count{by}[{window}]))"

    def _accept_length_query(self, window: str) -> str:
        """Return the query. Engines label the model `model_name`; Dynamo's workers add `model`."""

        def rate(what: str) -> str:
            """Return the query of a rate."""
            of_model = (
                f"rate(vllm:spec_decode_num_{what}_total{{{label}={self._model}}}[{window}])"
                for label in ("model_name", "model")
            )
            # `or` takes the second series only where the first is missing, so nothing counts twice.
            return f"sum({' or '.join(of_model)})"

        return f"1 + {rate('accepted_tokens')} / {rate('drafts')}"

    async def _query_value(self, query: str) -> float | None:
        """Return the value of a query, or None without a finite value."""
        text = await self._http.get(
            f"{self._source.url.rstrip('/')}/api/v1/query",
            {"query": query},
            token_file=self._source.token_file,
            timeout_s=self._source.timeout_s,
        )
        try:
            answer = msgspec.json.decode(text, type=_Answer)
            value = float(answer.data.result[0].value[1]) if answer.data.result else math.nan
        except (ValueError, *DECODE_ERRORS) as error:
            raise HttpError(
                "unreadable", f"Prometheus sent an unexpected answer: {error}"
            ) from None
        return value if math.isfinite(value) else None


def _quote_label(value: str) -> str:
    """Return a text as the value of a label."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
