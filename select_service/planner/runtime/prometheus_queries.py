"""Queries for the traffic of a deployment, in PromQL.

Metric names: https://docs.nvidia.com/dynamo/latest/reference/observability/metrics-catalog
(families dynamo_frontend_* and dynamo_component_router_*); accept lengths have the names of vLLM,
SGLang and TensorRT-LLM. `increase` and `rate` allow for counters that restart at 0.
"""

import re
from typing import Final, NamedTuple

from select_service.planner.config import PrometheusSourceConfig

PREFIXES: Final = {"frontend": "dynamo_frontend", "router": "dynamo_component_router"}
ACCEPT_LENGTH_GAUGES: Final = (
    "sglang:spec_accept_length",
    "trtllm_spec_decode_acceptance_length",
)
CENSUS_WINDOW: Final = "1h"

_WORKER_SUFFIX: Final = "(?:[-_][0-9a-f]{6,64})?"
"""Pattern of the generation that Dynamo's operator appends to the namespace of workers."""
_META = re.compile(r"[\\.+*?()|\[\]{}^$]")


class TrafficQuery(NamedTuple):
    """Query of a field of the traffic; the first of a field that has a number counts.

    is_needed: whether no replicas can be computed without the value
    """

    field: str
    text: str
    is_needed: bool = False


class TrafficQueries:
    """Queries of a source for a model."""

    def __init__(self, source: PrometheusSourceConfig, model_name: str) -> None:
        self._prefix = PREFIXES[source.source]
        # Frontends export model names in lower case.
        self._model = _quote_text(f"(?i:{_escape_pattern(model_name)})")
        # Only frontends have the model as a label: routers are distinguished by their namespace.
        of_model = [f"model=~{self._model}"] if source.source == "frontend" else []
        self._of_source = _matchers(*of_model, *_namespace_matchers(source.namespace))
        self._of_workers = _matchers(*_namespace_matchers(source.namespace, _WORKER_SUFFIX))
        # Engines that are scraped without Dynamo have no namespace; their model must do.
        self._of_engines = _namespace_matchers(source.namespace, _WORKER_SUFFIX, or_none=True)

    def for_window(self, window_s: int) -> tuple[TrafficQuery, ...]:
        """Return the queries of the last `window_s` seconds."""
        window = f"{window_s}s"
        hit_rate = f"{PREFIXES['router']}_kv_hit_rate"
        return (
            TrafficQuery("requests", self._requests_query(window), True),
            TrafficQuery("isl", self._mean_query("input_sequence_tokens", window), True),
            TrafficQuery("osl", self._mean_query("output_sequence_tokens", window), True),
            TrafficQuery("kv_hit_rate", _ratio_query(hit_rate, self._of_workers, window)),
            TrafficQuery("accept_length", self._draft_query(window)),
            *(
                TrafficQuery("accept_length", self._gauge_query(gauge, window))
                for gauge in ACCEPT_LENGTH_GAUGES
            ),
            TrafficQuery("ttft_s", self._mean_query("time_to_first_token_seconds", window)),
            TrafficQuery("itl_s", self._mean_query("inter_token_latency_seconds", window)),
        )

    def census(self) -> str:
        """Return the query of the models and namespaces that the source has at all."""
        names = f'{{__name__=~"{self._prefix}_requests_(started_)?total"}}'
        return f"count by (model, dynamo_namespace) (last_over_time({names}[{CENSUS_WINDOW}]))"

    def _requests_query(self, window: str) -> str:
        """Return the query of started requests, or of completed requests if none are exported.

        Completed requests are less than the demand while answers are long or engines overloaded.
        """
        started, completed = (
            f"sum by (job, instance) (increase({self._prefix}_{name}{self._of_source}[{window}]))"
            for name in ("requests_started_total", "requests_total")
        )
        # `or` decides by instance, so releases of both kinds may run beside each other.
        return f"sum({started} or {completed})"

    def _mean_query(self, name: str, window: str) -> str:
        """Return the query of a histogram's mean."""
        return _ratio_query(f"{self._prefix}_{name}", self._of_source, window)

    def _draft_query(self, window: str) -> str:
        """Return the query of vLLM's accept length: the base token and the accepted tokens."""

        def rate(what: str) -> str:
            """Return the query of a rate."""
            name = f"vllm:spec_decode_num_{what}_total"
            return f"sum({self._of_both_labels('rate', name, window)})"

        return f"1 + {rate('accepted_tokens')} / {rate('drafts')}"

    def _gauge_query(self, name: str, window: str) -> str:
        """Return the query of a gauge of the accept length; idle engines report less than 1."""
        return f"avg(({self._of_both_labels('avg_over_time', name, window)}) >= 1)"

    def _of_both_labels(self, function: str, name: str, window: str) -> str:
        """Return a function of an engine's series.

        Engines label the model `model_name`, Dynamo's workers add `model`.
        """
        # `or` takes the second series only where the first is missing, so nothing counts twice.
        return " or ".join(
            f"{function}({name}{_matchers(f'{label}=~{self._model}', *self._of_engines)}[{window}])"
            for label in ("model_name", "model")
        )


def _ratio_query(name: str, matchers: str, window: str) -> str:
    """Return the query of a histogram's mean over all its series."""
    total, count = (f"sum(increase({name}_{of}{matchers}[{window}]))" for of in ("sum", "count"))
    return f"{total} / {count}"


def _matchers(*matchers: str) -> str:
    """Return label matchers in braces, or nothing."""
    return f"{{{','.join(matchers)}}}" if matchers else ""


def _namespace_matchers(
    namespace: str | None, suffix: str = "", *, or_none: bool = False
) -> tuple[str, ...]:
    """Return the matcher of a namespace with dashes or underscores; none without a namespace.

    Dynamo's runtime writes underscores, labels of pods keep dashes.
    """
    if namespace is None:
        return ()
    either = "[-_]".join(map(_escape_pattern, re.split("[-_]", namespace)))
    found = f"{either}{suffix}{'|' if or_none else ''}"
    return (f"dynamo_namespace=~{_quote_text(found)}",)


def _escape_pattern(text: str) -> str:
    """Return a text as a pattern of RE2 that matches only itself."""
    return _META.sub(r"\\\g<0>", text)


def _quote_text(value: str) -> str:
    """Return a text as a string of PromQL."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
