"""Player of fitted lines and averages, and of answers that the document's models give.

Those models describe an engine by its line and averages alone. Nothing is rounded, only the limits
of the question apply, and the answer is 0 where the model has none.
"""

from collections.abc import Callable, Iterator
from math import floor
from typing import Any, NamedTuple

from select_service.planner.core.performance.bucketed_samples import RunningAverage
from select_service.planner.core.performance.engine_capacity import EngineKind
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.performance.line_fit import FittedLine
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import usable_hit_rate
from tests.vectors.differences import Difference, differences
from tests.vectors.planner_capacity import pass_of

Ask = dict[str, Any]
Answer = dict[str, float | None]
SECONDS_MIN = 1e-6


class LearntModel(NamedTuple):
    """Fitted model.

    line: fitted line; None means not fitted
    requests: mean number of requests that decode at the same time
    """

    line: FittedLine | None
    model: EngineModel
    requests: float

    def seconds(self, *x: float) -> float:
        """Return the seconds of one iteration; the line must be fitted."""
        assert self.line is not None
        slopes = zip(self.line.coefficients, x, strict=True)
        return max(SECONDS_MIN, self.line.intercept + sum(slope * each for slope, each in slopes))

    def chunked_seconds(self, tokens: float, chunk: float | None, *beside: float) -> float:
        """Return the seconds of a prefill in chunks of `chunk` tokens; None means one chunk."""
        if chunk is None:
            return self.seconds(tokens, *beside)
        whole = floor(tokens / chunk)
        rest = tokens - whole * chunk
        last = self.seconds(rest, *beside) if rest > 0 or not whole else 0.0
        return whole * self.seconds(chunk, *beside) + last


def play(case: dict[str, Any]) -> Iterator[Difference]:
    """Compare the fitted values, then every answer."""
    kind: EngineKind = "aggregated" if case["model"] == "agg" else case["model"]
    settings = DeploymentSettings(
        robust=False,
        max_num_fpm_samples=case["max_samples"],
        load_min_observations=case["min_observations"],
        fpm_sample_bucket_size=case["buckets"],
    )
    model, requests = EngineModel(kind, settings), RunningAverage(case["max_samples"])
    passes = [pass_of(one) for one in case["observations"]]
    model.observe_passes(passes, 0.0)
    for one in passes:
        requests.add_value(one.decode_requests)
    learnt = LearntModel(model.fitted_line("fpm"), model, requests.mean_value)
    yield from differences(case["result"], _learnt_values(case, learnt))
    for at, ask in enumerate(case["asked"]):
        found = ANSWERS[kind, ask["ask"]](ask, learnt)
        expected = {name: ask[name] for name in found}
        yield from differences(expected, found, f"asked[{at}]")


def _learnt_values(case: dict[str, Any], learnt: LearntModel) -> dict[str, Any]:
    line, model = learnt.line, learnt.model
    found = {
        "sufficient": len(model.samples["fpm"]) >= case["min_observations"],
        "observations": len(model.samples["fpm"]),
        "fitted": line is not None,
        "coefficients": None if line is None else list(line.coefficients),
        "intercept": None if line is None else line.intercept,
        "avg_isl": model.isl.mean_value,
        "avg_decode_length": model.context.mean_value,
        "avg_prefill_tokens": model.prefill_tokens.mean_value,
    }
    return {name: value for name, value in found.items() if name in case["result"]}


def _prefill_ttft(ask: Ask, learnt: LearntModel) -> Answer:
    chunk = ask["max_num_batched_tokens"]
    if learnt.line is None or chunk == 0:
        return {"seconds": None}
    tokens = ask["queued_prefill_tokens"] + learnt.model.isl.mean_value
    return {"seconds": learnt.chunked_seconds(tokens * _computed_share(ask), chunk)}


def _prefill_capacity(ask: Ask, learnt: LearntModel) -> Answer:
    if learnt.line is None or not ask["isl"]:
        return {"rps": 0.0, "ttft_ms": 0.0}
    seconds = learnt.chunked_seconds(ask["isl"], ask["max_num_batched_tokens"])
    return {"rps": 1.0 / seconds, "ttft_ms": seconds * 1000.0}


def _decode_itl(ask: Ask, learnt: LearntModel) -> Answer:
    if learnt.line is None:
        return {"seconds": None}
    kv = ask["scheduled_kv"] + ask["queued_kv"] + learnt.model.context.mean_value
    return {"seconds": learnt.seconds(learnt.requests + 1, kv)}


def _decode_capacity(ask: Ask, learnt: LearntModel) -> Answer:
    if learnt.line is None:
        return {"rps": 0.0, "itl_ms": 0.0}
    kv_max = ask["max_kv_tokens"] or learnt.model.samples["fpm"].largest_seen[1]
    most = floor(kv_max / ask["context_length"])
    if ask["max_num_seqs"] is not None:
        most = min(most, ask["max_num_seqs"])

    def itl_s(batch: int) -> float:
        seconds = learnt.seconds(batch, batch * ask["context_length"])
        return seconds / float(ask["accept_length"])

    batch = _largest(most, lambda n: itl_s(n) * 1000.0 <= ask["itl_ms_target"])
    return {"rps": batch / (ask["osl"] * itl_s(batch)), "itl_ms": itl_s(batch) * 1000.0}


def _aggregated_ttft(ask: Ask, learnt: LearntModel) -> Answer:
    chunk = ask["max_num_batched_tokens"]
    if learnt.line is None or chunk == 0:
        return {"seconds": None}
    tokens = ask["queued_prefill_tokens"] + learnt.model.isl.mean_value
    return {
        "seconds": learnt.chunked_seconds(tokens * _computed_share(ask), chunk, ask["decode_kv"])
    }


def _aggregated_itl(ask: Ask, learnt: LearntModel) -> Answer:
    if learnt.line is None:
        return {"seconds": None}
    kv = ask["scheduled_kv"] + ask["queued_kv"] + learnt.model.context.mean_value
    return {"seconds": learnt.seconds(learnt.model.prefill_tokens.mean_value, kv)}


def _aggregated_capacity(ask: Ask, learnt: LearntModel) -> Answer:
    if learnt.line is None:
        return {"rps": 0.0, "ttft_ms": 0.0, "itl_ms": 0.0}
    context = ask["isl"] + ask["osl"] / 2
    most = floor(ask["max_kv_tokens"] / context)
    if ask["max_num_seqs"] is not None:
        most = min(most, ask["max_num_seqs"])

    def latencies(batch: int) -> tuple[float, float]:
        beside = batch * ask["isl"] * _computed_share(ask) / ask["osl"]
        own = learnt.model.isl.mean_value * _computed_share(ask)
        kv = batch * context
        ttft_s = learnt.chunked_seconds(beside + own, ask["max_num_batched_tokens"], kv)
        return ttft_s * 1000.0, learnt.seconds(beside, kv) * 1000.0

    def is_kept(batch: int) -> bool:
        ttft_ms, itl_ms = latencies(batch)
        return bool(ttft_ms <= ask["ttft_ms_target"] and itl_ms <= ask["itl_ms_target"])

    batch = _largest(most, is_kept)
    ttft_ms, itl_ms = latencies(batch)
    rps = batch / (ask["osl"] * itl_ms / 1000.0)
    return {"rps": rps, "ttft_ms": ttft_ms, "itl_ms": itl_ms}


def _computed_share(ask: Ask) -> float:
    """Return the share of a prompt that is computed."""
    return 1.0 - usable_hit_rate(ask.get("kv_hit_rate") or 0.0)


def _largest(most: int, is_kept: Callable[[int], bool]) -> int:
    """Return the largest batch that meets the target, or 1 if no batch does."""
    return next((batch for batch in range(max(1, most), 0, -1) if is_kept(batch)), 1)


ANSWERS: dict[tuple[EngineKind, str], Callable[[Ask, LearntModel], Answer]] = {
    ("prefill", "ttft"): _prefill_ttft,
    ("prefill", "capacity"): _prefill_capacity,
    ("decode", "itl"): _decode_itl,
    ("decode", "capacity"): _decode_capacity,
    ("aggregated", "ttft"): _aggregated_ttft,
    ("aggregated", "itl"): _aggregated_itl,
    ("aggregated", "capacity"): _aggregated_capacity,
}
