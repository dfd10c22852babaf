#!/usr/bin/env python3
"""Recorder of an engine's Prometheus text under a given load: the data of tests/recordings/metrics.

Runs in an environment with vLLM or SGLang; needs neither a GPU nor a model. Real is the engine's
collector, with names, labels and rendering of every metric; simulated are the numbers of its
scheduler. Tested with vLLM 0.33 and SGLang 0.5.23.

    python scripts/recording/engine_metrics.py vllm --out tests/recordings/metrics
    python scripts/recording/engine_metrics.py sglang --out tests/recordings/metrics

For one rank and for two: rank i runs 7+i requests, 3+2i wait, and 0.625+i/8 of its cache is used.
In vLLM one more request waits, deferred.
"""

import argparse
import importlib.metadata
import lzma
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

from prometheus_client import REGISTRY, generate_latest

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
STEPS = 20
"""Scheduler steps that fill the histograms a little."""


def loads(n_ranks: int) -> list[tuple[int, int, int, float]]:
    """Return (rank, running, waiting, used share of the cache) for every rank."""
    return [(i, 7 + i, 3 + 2 * i, 0.625 + i / 8) for i in range(n_ranks)]


def vllm_text(n_ranks: int) -> bytes:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm.config import ObservabilityConfig
    from vllm.v1.metrics.loggers import PrometheusStatLogger
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats

    model = SimpleNamespace(served_model_name=MODEL, max_model_len=131072, is_diffusion=False)
    absent = ("speculative", "kv_transfer", "ec_transfer", "lora", "watermark")
    config = SimpleNamespace(
        model_config=model,
        observability_config=ObservabilityConfig(),
        **{f"{name}_config": None for name in absent},
    )
    logger = PrometheusStatLogger(config, list(range(n_ranks)))
    for rank, running, waiting, usage in loads(n_ranks):
        scheduler = SchedulerStats(
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            num_skipped_waiting_reqs=1,
            kv_cache_usage=usage,
        )
        for step in range(STEPS):
            iteration = IterationStats()
            iteration.num_generation_tokens = running
            iteration.time_to_first_tokens_iter = [0.01 * (step + 1)]
            iteration.inter_token_latencies_iter = [0.002 * (step + 1)] * running
            logger.record(scheduler, iteration, engine_idx=rank)
    return generate_latest()


def sglang_text(n_ranks: int) -> bytes:
    _stand_in("sglang.srt.disaggregation.utils", "DisaggregationMode")
    _stand_in("sglang.srt.model_executor.forward_batch_info", "ForwardMode")
    from sglang.srt.observability import metrics_collector as own

    schedule = SimpleNamespace(
        prefill_delayer_max_delay_passes=30,
        prefill_delayer_forward_passes_buckets=None,
        prefill_delayer_wait_seconds_buckets=None,
    )
    own.get_schedule = lambda: schedule
    own.exports_expert_balancedness_to_prometheus = lambda: False
    labels = {"model_name": MODEL, "engine_type": "unified", "tp_rank": 0, "pp_rank": 0}
    labels |= {"moe_ep_rank": 0} | ({"dp_rank": 0} if n_ranks > 1 else {})
    for collector in list(REGISTRY._collector_to_names):
        REGISTRY.unregister(collector)
    collector = own.SchedulerMetricsCollector(labels=labels, server_args=SimpleNamespace())
    for rank, running, waiting, usage in loads(n_ranks):
        if n_ranks > 1:
            collector.labels = labels | {"dp_rank": rank}
        stats = own.SchedulerStats(token_usage=usage, full_token_usage=usage)
        stats.num_running_reqs = own.QueueCount(running)
        stats.num_queue_reqs = own.QueueCount(waiting)
        collector.log_stats(stats)
    return generate_latest()


def _stand_in(module: str, *names: str) -> None:
    """Replace a module that would import packages unused by the collector."""
    made = ModuleType(module)
    for name in names:
        setattr(made, name, type(name, (), {}))
    sys.modules[module] = made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("--out", type=Path, required=True, help="directory to write to")
    chosen = parser.parse_args()
    text_of = {"vllm": vllm_text, "sglang": sglang_text}[chosen.engine]
    version = importlib.metadata.version(chosen.engine)
    for n_ranks in (1, 2):
        text = text_of(n_ranks)
        path = chosen.out / f"{chosen.engine}-{version}-{n_ranks}.txt.xz"
        path.write_bytes(lzma.compress(text))
        print(f"{path.name}: {len(text)} bytes")


if __name__ == "__main__":
    main()
