"""Parser of an engine's Prometheus metrics for the load of its ranks.

Only a few lines of the text matter, one per rank and metric, and a full parser would take ten times
longer than a scrape may cost. The lines are therefore selected by name, and only those are parsed.
The text is untrusted: every length is limited before processing.

Rank of a sample: vLLM uses the label `engine`, the index of the engine core; SGLang uses
`dp_rank`, besides labels that distinguish copies of one scheduler. The numbers are ranks of the
worker if possible, else positions among its ranks. A sample without such a label counts for every
rank. Of several samples for a rank and signal the largest counts.

Source: the exposition format, https://prometheus.io/docs/instrumenting/exposition_formats/; names
and labels as the engines register them, see tests/recordings/metrics.
"""

import re
from collections.abc import Generator, Iterator
from typing import Literal, NamedTuple, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from select_service.base.errors import PicklableError
from select_service.core.workers.engine_load import EngineReading

LINE_BYTES_MAX = 4096
LINES_BYTES_MAX = 256 * 1024
"""Maximum size of all relevant lines of a text, bytes."""
RANK_LINES_BYTES_MAX = 4 * 1024
"""The same per rank: about thirty lines, of which three or four are usual."""
LINES_BYTES_ALWAYS = 16 * 1024
"""The same for a worker with few ranks."""
COUNT_MAX = 2**53
"""Largest range in which a float represents every integer."""

Signal = Literal["kv_usage", "requests_waiting", "requests_running"]
_Values: TypeAlias = dict[Signal, float | None]
"""Values by signal; None means implausible."""
_ValuesByLabel: TypeAlias = dict[int | None, _Values]
"""Values by the engine's rank number; None for all ranks."""
SIGNALS: dict[str, Signal] = {
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:gpu_cache_usage_perc": "kv_usage",
    "vllm:num_requests_waiting": "requests_waiting",
    "vllm:num_requests_running": "requests_running",
    "sglang:token_usage": "kv_usage",
    "sglang:num_queue_reqs": "requests_waiting",
    "sglang:num_running_reqs": "requests_running",
}
"""Signal by metric name; `gpu_cache_usage_perc` is the name in older vLLM releases."""
RANK_LABELS = {"vllm": "engine", "sglang": "dp_rank"}

SLICE_BYTES = 16 * 1024
"""Bytes searched per step."""
LINES_BYTES_AT_ONCE = 1024
"""Bytes of relevant lines parsed per step, about half a millisecond."""

_LINES = re.compile(rb"\n(?:%b)[{ \t][^\n]{0,%d}" % ("|".join(SIGNALS).encode(), LINE_BYTES_MAX))
"""Pattern with a fixed first byte, which Python's regular expressions find fastest."""
_TOO_LARGE = "the relevant metrics are larger than the limit"
_PARSER_FAULTS = (ValueError, IndexError, OverflowError)
"""Exceptions of the parser for malformed lines."""


class MetricsTextError(PicklableError):
    """The text has no usable value. `result`: `unreadable` or `no_metric`"""

    def __init__(self, result: Literal["unreadable", "no_metric"], error: str) -> None:
        super().__init__(error)
        self.result = result


class _Sample(NamedTuple):
    """Parsed sample.

    label: the engine's rank number, None for all ranks
    value: None if implausible
    """

    label: int | None
    signal: Signal
    value: float | None


def parse_in_steps(
    text: bytes, dp_ranks: tuple[int, ...]
) -> Generator[None, None, dict[int, EngineReading]]:
    """Return readings by dp_rank, for the ranks in the text, with a `yield` after each step.

    A signal is None if missing or implausible: a usage outside 0 to 1, or a count that is not a
    whole number from 0. Raises MetricsTextError if no signal of any rank remains.
    """
    bytes_max = max(LINES_BYTES_ALWAYS, RANK_LINES_BYTES_MAX * len(dp_ranks))
    bytes_max = min(LINES_BYTES_MAX, bytes_max)
    lines = yield from find_relevant_lines(text, bytes_max)
    values_by_label: _ValuesByLabel = {}
    for some in _split_lines(lines[1:], LINES_BYTES_AT_ONCE):
        yield
        for label, signal, value in _parse_samples(some):
            _merge_value(values_by_label.setdefault(label, {}), signal, value)
    yield
    return _readings_in(values_by_label, dp_ranks)


def _merge_value(values: _Values, signal: Signal, value: float | None) -> None:
    """Keep the larger of two values; an implausible value makes the result implausible."""
    before = values.get(signal, value)
    values[signal] = None if before is None or value is None else max(before, value)


def _readings_in(
    values_by_label: _ValuesByLabel, dp_ranks: tuple[int, ...]
) -> dict[int, EngineReading]:
    """Assign values to ranks. Raises MetricsTextError."""
    ranks_by_label = _ranks_by_label(
        {label for label in values_by_label if label is not None}, dp_ranks
    )
    values: dict[int, _Values] = {}
    for label, found in values_by_label.items():
        for dp_rank in dp_ranks if label is None else ranks_by_label.get(label, ()):
            rank_values = values.setdefault(dp_rank, {})
            for signal, value in found.items():
                _merge_value(rank_values, signal, value)
    if not values:
        raise MetricsTextError(
            "no_metric", "the metrics have none of the worker's ranks: check its data_parallel_size"
        )
    if all(value is None for rank_values in values.values() for value in rank_values.values()):
        raise MetricsTextError("unreadable", "all metric values are implausible")
    return {dp_rank: _make_reading(rank_values) for dp_rank, rank_values in values.items()}


def _parse_samples(lines: bytes) -> Iterator[_Sample]:
    try:
        for family in text_string_to_metric_families(lines.decode()):
            for sample in family.samples:
                signal = SIGNALS.get(sample.name)
                if signal is None:  # more words stand before the labels
                    raise ValueError(f"invalid metric name: {sample.name}")
                label = _rank_label(sample.name, sample.labels)
                yield _Sample(label, signal, _plausible_value(signal, sample.value))
    except _PARSER_FAULTS as error:
        raise MetricsTextError("unreadable", f"{type(error).__name__}: {error}") from None


def find_relevant_lines(text: bytes, bytes_max: int) -> Generator[None, None, bytes]:
    """Return the relevant lines, each after its line feed. Raises MetricsTextError."""
    found: list[bytes] = []
    size = 0
    for number, piece in enumerate(_split_lines(text, SLICE_BYTES)):
        if number:
            yield
        for line in _LINES.findall(b"\n" + piece):
            found.append(line)
            size += len(line)
            # Rejected as a whole: reading only a part could make a busy rank look idle.
            if len(line) > LINE_BYTES_MAX or size > bytes_max:
                raise MetricsTextError("unreadable", _TOO_LARGE)
    if not found:
        raise MetricsTextError("no_metric", "the answer has no known vLLM or SGLang metric")
    # A cut-off last line could contain a truncated number, which would parse as a valid one.
    if not text.endswith(b"\n"):
        raise MetricsTextError("unreadable", "the answer ends in the middle of a line")
    return b"".join(found)


def _split_lines(text: bytes, slice_bytes: int) -> Iterator[bytes]:
    """Yield groups of whole lines, or single longer lines."""
    begin = 0
    while begin < len(text):
        end = text.rfind(b"\n", begin, begin + slice_bytes)
        if end < 0:
            end = text.find(b"\n", begin + slice_bytes)
        if end < 0:
            end = len(text)
        yield text[begin:end]
        begin = end + 1


def _rank_label(metric: str, labels: dict[str, str]) -> int | None:
    """Return the rank number. Raises ValueError for other labels."""
    label = labels.get(RANK_LABELS[metric.partition(":")[0]])
    return None if label is None else int(label)


def _ranks_by_label(labels: set[int], dp_ranks: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """Return the ranks of each label; labels of other workers' ranks are left out."""
    if len(labels) == len(dp_ranks) == 1:
        return dict.fromkeys(labels, dp_ranks)  # one engine, one rank: nothing to tell apart
    positions = range(len(dp_ranks))
    # Engines of a worker that starts at a higher rank count their ranks from 0.
    if not labels <= set(dp_ranks) and labels <= set(positions):
        return {position: (dp_ranks[position],) for position in positions}
    return {dp_rank: (dp_rank,) for dp_rank in dp_ranks}


def _plausible_value(signal: Signal, value: float) -> float | None:
    """Return the value if plausible; NaN fails both comparisons."""
    if signal == "kv_usage":
        return value if 0 <= value <= 1 else None
    return value if 0 <= value <= COUNT_MAX and value == int(value) else None


def _make_reading(values: _Values) -> EngineReading:
    usage, waiting, running = (
        values.get(signal) for signal in ("kv_usage", "requests_waiting", "requests_running")
    )
    return EngineReading(
        None if usage is None else float(usage),
        None if waiting is None else int(waiting),
        None if running is None else int(running),
    )
