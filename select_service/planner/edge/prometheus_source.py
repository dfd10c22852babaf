"""EDGE: traffic of a deployment from Prometheus, where no selector tells it.

Metric names: https://docs.nvidia.com/dynamo/latest/reference/observability/metrics-catalog
(families dynamo_frontend_* and dynamo_component_router_*). Only frontends say the model: routers
are told apart by their namespace. A query without a finite answer is
unknown, never 0; no requests at all are known to be 0 only where the counter itself is there.
"""

import asyncio
import math
from typing import Annotated

import msgspec
from msgspec import Struct

from select_service.planner.config import PrometheusSource
from select_service.planner.core.inputs import Traffic
from select_service.planner.outbound import Outbound, Unreachable
from select_service.tls.kept import ClientTls
from select_service.unreadable_json import UNREADABLE

PREFIXES = {"frontend": "dynamo_frontend", "router": "dynamo_component_router"}


class _Sample(Struct):
    value: tuple[float, str]


class _Data(Struct):
    result: Annotated[list[_Sample], msgspec.Meta(max_length=10_000)]


class _Answer(Struct):
    status: str
    data: _Data


class PrometheusTraffic:
    """Of one deployment. Belongs to one event loop. tls: as in `Outbound`"""

    def __init__(
        self, source: PrometheusSource, model_name: str, tls: ClientTls | None = None
    ) -> None:
        self._source = source
        self._prefix = PREFIXES[source.source]
        self._model = _quoted(model_name)
        namespace = source.namespace
        self._of_routers = "" if namespace is None else f"{{dynamo_namespace={_quoted(namespace)}}}"
        self._of_source = self._of_routers
        if source.source == "frontend":
            self._of_source = f"{{model={self._model}}}"
        self._http = Outbound(tls)

    async def close(self) -> None:
        await self._http.close()

    async def observe(self, window_s: float) -> Traffic:
        """The last `window_s` seconds. Raises Unreachable when Prometheus does not answer."""
        window = f"{max(1, round(window_s))}s"
        requests, isl, osl, hits, accept, ttft_s, itl_s = await asyncio.gather(
            self._value(self._increase("requests_total", window)),
            self._value(self._mean("input_sequence_tokens", window)),
            self._value(self._mean("output_sequence_tokens", window)),
            self._value(self._mean("kv_hit_rate", window, PREFIXES["router"], self._of_routers)),
            self._value(self._accept_length(window)),
            self._value(self._mean("time_to_first_token_seconds", window)),
            self._value(self._mean("inter_token_latency_seconds", window)),
        )
        return Traffic(
            duration_s=window_s,
            requests=requests,
            isl=isl,
            osl=osl,
            kv_hit_rate=hits,
            accept_length=accept,
            ttft_s=ttft_s,
            itl_s=itl_s,
        )

    def _increase(self, name: str, window: str) -> str:
        return f"sum(increase({self._prefix}_{name}{self._of_source}[{window}]))"

    def _mean(
        self, name: str, window: str, prefix: str | None = None, labels: str | None = None
    ) -> str:
        series = f"{self._prefix if prefix is None else prefix}_{name}"
        by = self._of_source if labels is None else labels
        total = f"sum(increase({series}_sum{by}[{window}]))"
        return f"{total} / sum(increase({series}_count{by}[{window}]))"

    def _accept_length(self, window: str) -> str:
        """Engines call the model `model_name`; Dynamo's workers add `model`."""

        def rate(what: str) -> str:
            of_model = (
                f"rate(vllm:spec_decode_num_{what}_total{{{label}={self._model}}}[{window}])"
                for label in ("model_name", "model")
            )
            return f"sum({' or '.join(of_model)})"

        return f"1 + {rate('accepted_tokens')} / {rate('drafts')}"

    async def _value(self, query: str) -> float | None:
        """None: there is no such series, or no finite number in it."""
        text = await self._http.get(
            f"{self._source.url.rstrip('/')}/api/v1/query",
            {"query": query},
            token_file=self._source.token_file,
            timeout_s=self._source.timeout_s,
        )
        try:
            answer = msgspec.json.decode(text, type=_Answer)
            value = float(answer.data.result[0].value[1]) if answer.data.result else math.nan
        except (ValueError, *UNREADABLE) as error:
            raise Unreachable(f"Prometheus answered something else: {error}") from None
        return value if math.isfinite(value) else None


def _quoted(value: str) -> str:
    """As the value of a label."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
