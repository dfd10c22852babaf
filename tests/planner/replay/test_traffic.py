"""Tests of requests from traces and rates, and of the windows computed from requests."""

import json
from pathlib import Path
from random import Random

import pytest

from select_service.files.request_trace import TraceError
from select_service.planner.core.tick_input import ForwardPass
from select_service.planner.replay.replay_traffic import repeat_requests, trace_requests
from select_service.planner.replay.simulated_engine import SimulatedRequest
from select_service.planner.replay.simulated_observation import (
    SAMPLES_MAX,
    SimulatedWindow,
    make_length_bins,
    measure_variation,
)
from tests.builders.request_traces import chat, write_lines
from tests.builders.simulated_engines import generate_requests


def trace(path: Path, *rows: tuple[float, list[int], int]) -> Path:
    lines = [
        json.dumps(
            {"timestamp": ms, "input_length": len(ids) * 512, "output_length": out, "hash_ids": ids}
        )
        for ms, ids, out in rows
    ]
    path.write_text("\n".join(lines))
    return path


def test_a_trace_has_the_shared_blocks_of_its_prompts(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", (2000, [1, 2, 4], 7), (0, [1, 2, 3], 5), (3000, [1], 0))
    found = trace_requests(path, speedup=2.0)
    assert [(r.arrived_s, r.isl, r.uncached, r.osl) for r in found] == [
        (0.0, 1536, 1536, 5),
        (1.0, 1536, 512, 7),
        (1.5, 512, 1, 1),
    ]


def test_a_full_cache_evicts_the_least_recently_used(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", (0, [1, 2], 1), (1, [3, 4], 1), (2, [1, 2], 1))
    assert trace_requests(path, cached_tokens=1024)[2].uncached == 1024
    assert trace_requests(path, cached_tokens=2048)[2].uncached == 1


def test_a_bailian_trace_shares_blocks_of_16_tokens(tmp_path: Path) -> None:
    rows = (chat(1, -1, 0.0, [1, 2, 3]), chat(2, 1, 4.0, [1, 2, 3, 4]))
    found = trace_requests(write_lines(tmp_path / "t.jsonl", *rows), speedup=2.0)
    assert [(each.arrived_s, each.isl, each.uncached) for each in found] == [
        (0.0, 40, 40),
        (2.0, 56, 8),
    ]


def test_a_line_that_is_no_request(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0}')
    with pytest.raises(TraceError, match="line 1"):
        trace_requests(path)


def test_a_rate_that_changes() -> None:
    found = list(
        generate_requests(
            lambda now: 5.0 if now < 500 else 20.0,
            until_s=1000,
            rate_max=20.0,
            lengths=lambda rng: (100, 50, 10),
            seed=1,
        )
    )
    early = sum(each.arrived_s < 500 for each in found)
    assert early == pytest.approx(2500, rel=0.1)
    assert len(found) - early == pytest.approx(10_000, rel=0.1)


def test_the_same_hour_again() -> None:
    hour = [SimulatedRequest(1.0, 10, 2, 10), SimulatedRequest(5.0, 20, 2, 20)]
    assert [each.arrived_s for each in repeat_requests(hour, 20.0, 8.0)] == [1, 5, 9, 13, 17]


def test_bins_keep_sums_and_order() -> None:
    values = [float(Random(3).randint(1, 1 << 20)) for _ in range(1000)] + [1.0, float(1 << 20)]
    found = make_length_bins(values)
    assert found is not None
    assert sum(found.counts) == len(values)
    assert sum(m * c for m, c in zip(found.means, found.counts, strict=True)) == pytest.approx(
        sum(values)
    )
    assert list(found.means) == sorted(found.means)


def test_a_window_counts_arrivals_like_selectors() -> None:
    rng, now, times = Random(4), 0.0, []
    for _ in range(5000):
        now += rng.expovariate(3.0)
        times.append(now)
    end = float(round(now))
    assert measure_variation(times, 0.0, end) == pytest.approx(1.0, rel=0.15)
    assert measure_variation([i + 0.5 for i in range(100)], 0.0, 100.0) == pytest.approx(
        0.0, abs=1e-9
    )
    assert measure_variation([1.0, 2.0], 0.0, 5.0) is None


def ended_request(ttft_s: float, itl_s: float) -> SimulatedRequest:
    return SimulatedRequest(0.0, 100, 11, 60, first_s=ttft_s, done_s=ttft_s + 10 * itl_s)


def test_windows_overlap_and_unknown_is_none() -> None:
    window = SimulatedWindow(ttft_s=0.5, itl_s=0.05, keep_s=60.0)
    assert window.read_traffic(0.0, 10.0).requests == 0.0
    for ttft_s, itl_s in ((0.4, 0.04), (0.6, 0.04), (0.4, 0.06), (0.4, 0.01)):
        window.add_arrival(ended_request(ttft_s, itl_s))
        window.add_finished(1.0, [ended_request(ttft_s, itl_s)])
    window.add_rejection(ended_request(1.0, 1.0))
    window.add_passes(
        1.0, [ForwardPass(worker="e", wall_s=0.02, decode_requests=3, decode_kv_tokens=900)]
    )
    told = window.read_traffic(5.0, 10.0, queued=2)
    assert (told.requests, told.isl, told.osl, told.queued_requests) == (4.0, 100.0, 11.0, 2.0)
    assert told.kv_hit_rate == pytest.approx(0.4)
    assert (told.ttft_met, told.itl_met, told.rejected) == (0.75, 0.75, 1.0)
    assert told.decode_samples[0].seconds == 0.02
    assert window.read_traffic(5.0, 10.0, queued=2) == told
    later = window.read_traffic(10.5, 10.0)
    assert (later.requests, later.isl, later.ttft_met) == (0.0, None, 0.75)
    window.add_passes(70.0, [])
    assert window.read_traffic(70.0, 1000.0).osl is None


def test_samples_are_bounded() -> None:
    window = SimulatedWindow(ttft_s=0.5, itl_s=0.05, keep_s=60.0)
    window.add_finished(5.0, (ended_request(0.1 + i / 1e4, 0.01) for i in range(1000)))
    samples = window.read_traffic(10.0, 10.0).prefill_samples
    assert len(samples) == SAMPLES_MAX
    assert samples[0].seconds < samples[-1].seconds
