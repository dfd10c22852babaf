"""What an engine's Prometheus text says about the load of its ranks.

Only a handful of lines of such a text matter, one per rank and metric, and a patient parser takes
ten times longer for all of it than a scrape may cost.  So the lines are picked out by name and only
those are parsed.  The text is foreign: every length is bounded before anything walks over it.

Which rank a sample belongs to.  vLLM labels it `engine`, the index of the engine core; SGLang has
`dp_rank`, next to labels that tell copies of one scheduler apart.  The numbers are taken as ranks
of the worker when they can be, else as positions among its ranks.  A sample without such a label
counts for every rank.  Of several samples for one rank and signal the largest counts.

Source: the exposition format, https://prometheus.io/docs/instrumenting/exposition_formats/; names
and labels as the engines register them, see tests/recordings/metrics.
"""

import re
from collections.abc import Generator, Iterator
from typing import Literal, NamedTuple, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from select_service.core.engines.engine_load import EngineReading
from select_service.errors import PortableError

LINE_BYTES_MAX = 4096
LINES_BYTES_MAX = 256 * 1024
"""Of all lines that matter in one text, together."""
RANK_LINES_BYTES_MAX = 4 * 1024
"""The same for each rank of the worker: some thirty lines, of which three or four are usual."""
LINES_BYTES_ALWAYS = 16 * 1024
"""The same for a worker of few ranks."""
COUNT_MAX = 2**53
"""Beyond this a float does not hold every integer."""

Signal = Literal["kv_usage", "requests_waiting", "requests_running"]
_Values: TypeAlias = dict[Signal, float | None]
"""None: not credible."""
_Told: TypeAlias = dict[int | None, _Values]
"""By the engine's number of the rank; None for all."""
SIGNALS: dict[str, Signal] = {
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:gpu_cache_usage_perc": "kv_usage",
    "vllm:num_requests_waiting": "requests_waiting",
    "vllm:num_requests_running": "requests_running",
    "sglang:token_usage": "kv_usage",
    "sglang:num_queue_reqs": "requests_waiting",
    "sglang:num_running_reqs": "requests_running",
}
"""Metric -> what it tells.  `gpu_cache_usage_perc` is the name of older releases of vLLM."""
RANK_LABELS = {"vllm": "engine", "sglang": "dp_rank"}

SLICE_BYTES = 16 * 1024
"""Looked through in one step."""
LINES_BYTES_AT_ONCE = 1024
"""Of lines that matter, parsed in one step: this takes about half a millisecond."""

_LINES = re.compile(rb"\n(?:%b)[{ \t][^\n]{0,%d}" % ("|".join(SIGNALS).encode(), LINE_BYTES_MAX))
"""Begins with one fixed byte, which the regular expressions of Python look for fastest."""
_TOO_LARGE = "the metrics take more space than they ever should"
_PARSER_FAULTS = (ValueError, IndexError, OverflowError)
"""What the parser raises for lines that it cannot read."""


class EngineTextError(PortableError):
    """The text tells nothing.  `result`: in one word, `unreadable` or `no_metric`."""

    def __init__(self, result: Literal["unreadable", "no_metric"], error: str) -> None:
        super().__init__(error)
        self.result = result


class _Sample(NamedTuple):
    """label: the engine's number of the rank, None for all.  value: None when not credible."""

    label: int | None
    signal: Signal
    value: float | None


def readings_of(text: bytes, dp_ranks: tuple[int, ...]) -> dict[int, EngineReading]:
    """The readings in the lines of a text that matter.  Raises EngineTextError."""
    steps = reading_steps(text, dp_ranks)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: dict[int, EngineReading] = end.value
            return found


def reading_steps(
    text: bytes, dp_ranks: tuple[int, ...]
) -> Generator[None, None, dict[int, EngineReading]]:
    """Return dp_rank -> reading, for the ranks among `dp_ranks` of which the text tells anything.

    It is read in steps, each up to a `yield`.  A signal is None when it is missing or not credible:
    a usage outside of 0 to 1, a count that is no whole number from 0 on.  Raises EngineTextError
    when no signal of any rank is left.
    """
    bytes_max = max(LINES_BYTES_ALWAYS, RANK_LINES_BYTES_MAX * len(dp_ranks))
    bytes_max = min(LINES_BYTES_MAX, bytes_max)
    lines = yield from lines_of(text, bytes_max)
    told: _Told = {}
    for some in _slices(lines[1:], LINES_BYTES_AT_ONCE):
        yield
        for label, signal, value in _samples(some):
            _note(told.setdefault(label, {}), signal, value)
    yield
    return _readings_in(told, dp_ranks)


def _note(known: _Values, signal: Signal, value: float | None) -> None:
    """Of two values the larger counts; none, once one of them was not credible."""
    before = known.get(signal, value)
    known[signal] = None if before is None or value is None else max(before, value)


def _readings_in(told: _Told, dp_ranks: tuple[int, ...]) -> dict[int, EngineReading]:
    """Raises EngineTextError."""
    ranks_by_label = _ranks_by_label({label for label in told if label is not None}, dp_ranks)
    values: dict[int, _Values] = {}
    for label, found in told.items():
        for dp_rank in dp_ranks if label is None else ranks_by_label.get(label, ()):
            known = values.setdefault(dp_rank, {})
            for signal, value in found.items():
                _note(known, signal, value)
    if not values:
        raise EngineTextError("no_metric", "the metrics are of other ranks than the worker has")
    if all(value is None for known in values.values() for value in known.values()):
        raise EngineTextError("unreadable", "no value of a metric is credible")
    return {dp_rank: _reading(known) for dp_rank, known in values.items()}


def _samples(lines: bytes) -> Iterator[_Sample]:
    try:
        for family in text_string_to_metric_families(lines.decode()):
            for sample in family.samples:
                signal = SIGNALS.get(sample.name)
                if signal is None:  # more words stand before the labels
                    raise ValueError(f"invalid metric name: {sample.name}")
                label = _label(sample.name, sample.labels)
                yield _Sample(label, signal, _credible(signal, sample.value))
    except _PARSER_FAULTS as error:
        raise EngineTextError("unreadable", f"{type(error).__name__}: {error}") from None


def lines_of(text: bytes, bytes_max: int) -> Generator[None, None, bytes]:
    """The lines that matter, each behind its line feed.  Raises EngineTextError."""
    found: list[bytes] = []
    size = 0
    for number, piece in enumerate(_slices(text, SLICE_BYTES)):
        if number:
            yield
        for line in _LINES.findall(b"\n" + piece):
            found.append(line)
            size += len(line)
            if len(line) > LINE_BYTES_MAX or size > bytes_max:
                raise EngineTextError("unreadable", _TOO_LARGE)
    if not found:
        raise EngineTextError("no_metric", "no known metric of vLLM or SGLang is in the answer")
    if not text.endswith(b"\n"):
        raise EngineTextError("unreadable", "the answer ends in the middle of a line")
    return b"".join(found)


def _slices(text: bytes, slice_bytes: int) -> Iterator[bytes]:
    """Whole lines together, or one that is longer."""
    begin = 0
    while begin < len(text):
        end = text.rfind(b"\n", begin, begin + slice_bytes)
        if end < 0:
            end = text.find(b"\n", begin + slice_bytes)
        if end < 0:
            end = len(text)
        yield text[begin:end]
        begin = end + 1


def _label(metric: str, labels: dict[str, str]) -> int | None:
    """Raises ValueError for a label that is no number."""
    label = labels.get(RANK_LABELS[metric.partition(":")[0]])
    return None if label is None else int(label)


def _ranks_by_label(labels: set[int], dp_ranks: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """Which rank each label means; a label of another worker's rank is left out."""
    if len(labels) == len(dp_ranks) == 1:
        return dict.fromkeys(labels, dp_ranks)  # one engine, one rank: nothing to tell apart
    positions = range(len(dp_ranks))
    if not labels <= set(dp_ranks) and labels <= set(positions):
        return {position: (dp_ranks[position],) for position in positions}
    return {dp_rank: (dp_rank,) for dp_rank in dp_ranks}


def _credible(signal: Signal, value: float) -> float | None:
    """NaN fails both comparisons."""
    if signal == "kv_usage":
        return value if 0 <= value <= 1 else None
    return value if 0 <= value <= COUNT_MAX and value == int(value) else None


def _reading(known: _Values) -> EngineReading:
    usage, waiting, running = (
        known.get(signal) for signal in ("kv_usage", "requests_waiting", "requests_running")
    )
    return EngineReading(
        None if usage is None else float(usage),
        None if waiting is None else int(waiting),
        None if running is None else int(running),
    )
