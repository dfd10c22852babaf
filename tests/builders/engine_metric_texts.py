"""Prometheus texts of engines: recorded texts, and short texts for single tests."""

import lzma
from pathlib import Path

DIRECTORY = Path(__file__).parents[1] / "recordings" / "metrics"


def recorded(name: str) -> bytes:
    """Return a text of tests/recordings/metrics.

    name: recording, such as vllm-0.33.0-2
    """
    return lzma.decompress((DIRECTORY / f"{name}.txt.xz").read_bytes())


def vllm(usage: object, waiting: object = 0, running: object = 0, engine: object = 0) -> bytes:
    """Return the lines of vLLM's text that matter, for one engine."""
    labels = f'{{engine="{engine}",model_name="m"}}'
    return (
        f"# TYPE vllm:kv_cache_usage_perc gauge\n"
        f"vllm:kv_cache_usage_perc{labels} {usage}\n"
        f"vllm:num_requests_waiting{labels} {waiting}\n"
        f"vllm:num_requests_running{labels} {running}\n"
    ).encode()
