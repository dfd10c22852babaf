"""Tests of Prometheus with Dynamo's series: names in any form, and descriptions of missing data."""

import math
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from select_service.net.http_client.http_error import HttpError
from select_service.planner.config import PrometheusSourceConfig
from select_service.planner.core.reasons import Reason
from select_service.planner.core.tick_input import TrafficWindow
from select_service.planner.runtime.prometheus_queries import TrafficQueries
from select_service.planner.runtime.prometheus_source import PrometheusTraffic
from tests.planner.runtime.fake_prometheus import FakePrometheus, Series, scraped_series
from tests.planner.runtime.serving import served
from tests.planner.runtime.test_loop import Scene

ROOT = Path(__file__).parents[3]
MODEL = "Qwen/Qwen3-8B"
SCRAPES = 21
"""Number of scrapes in five minutes, with a scrape every 15 s."""


def steady(per_scrape: float, first: float = 100.0) -> list[float]:
    return [first + i * per_scrape for i in range(SCRAPES)]


def histogram(name: str, mean: float, per_scrape: float, **labels: str) -> list[Series]:
    return [
        scraped_series(f"{name}_sum", steady(per_scrape * mean, 100.0 * mean), **labels),
        scraped_series(f"{name}_count", steady(per_scrape), **labels),
    ]


def frontend(instance: str, *, starts: bool = True, per_scrape: float = 5.0) -> list[Series]:
    """Return the series of a frontend as exported by Dynamo, with the model in lower case."""
    labels = {
        "job": "frontend",
        "instance": instance,
        "model": MODEL.lower(),
        "dynamo_namespace": "prod-a",
    }
    kind = {"endpoint": "chat_completions", "request_type": "stream"}
    done = labels | kind | {"status": "success", "error_type": ""}
    result = [scraped_series("dynamo_frontend_requests_total", steady(per_scrape * 0.8), **done)]
    if starts:
        started = steady(per_scrape)
        result.append(
            scraped_series("dynamo_frontend_requests_started_total", started, **labels, **kind)
        )
    for name, mean in (
        ("input_sequence_tokens", 3000.0),
        ("output_sequence_tokens", 150.0),
        ("time_to_first_token_seconds", 0.25),
        ("inter_token_latency_seconds", 0.03),
    ):
        result += histogram(f"dynamo_frontend_{name}", mean, per_scrape * 0.8, **labels)
    return result


def router(namespace: str, hit_rate: float, per_scrape: float = 4.0) -> list[Series]:
    labels = {"job": "router", "instance": f"{namespace}:9090", "dynamo_namespace": namespace}
    result = [
        scraped_series(
            "dynamo_component_router_requests_started_total", steady(per_scrape), **labels
        ),
        scraped_series("dynamo_component_router_requests_total", steady(per_scrape / 2), **labels),
    ]
    for name, mean in (
        ("kv_hit_rate", hit_rate),
        ("input_sequence_tokens", 2000.0),
        ("output_sequence_tokens", 90.0),
    ):
        result += histogram(f"dynamo_component_router_{name}", mean, per_scrape, **labels)
    return result


@asynccontextmanager
async def reading(
    series: list[Series], *, model: str = MODEL, age_s: float = 600.0, **source: str
) -> AsyncIterator[tuple[PrometheusTraffic, FakePrometheus]]:
    fake = FakePrometheus(series, now_s=300.0)
    times = iter([0.0])
    async with served(fake.answers()) as url:
        traffic = PrometheusTraffic(
            PrometheusSourceConfig(url, **source),
            model,
            clock=lambda: next(times, age_s),
        )
        try:
            yield traffic, fake
        finally:
            await traffic.close()


async def read_window(series: list[Series], **given: str) -> TrafficWindow:
    async with reading(series, **given) as (traffic, _):
        return await traffic.read_traffic(180.0)


async def test_a_model_is_found_in_any_case() -> None:
    traffic = await read_window(frontend("a"))
    assert traffic.requests == pytest.approx(60.0)
    assert (traffic.isl, traffic.osl) == (pytest.approx(3000.0), pytest.approx(150.0))
    assert (traffic.ttft_s, traffic.itl_s) == (pytest.approx(0.25), pytest.approx(0.03))
    assert (await read_window(frontend("a"), model="Qwen/Qwen3.8B")).requests is None


async def test_demand_is_started_or_else_completed_requests() -> None:
    old = frontend("old", starts=False)
    assert (await read_window(old)).requests == pytest.approx(48.0)
    both = frontend("new") + old
    assert (await read_window(both)).requests == pytest.approx(60.0 + 48.0)
    routers = router("prod_a", 0.5)
    assert (await read_window(routers, source="router")).requests == pytest.approx(48.0)


@pytest.mark.parametrize("namespace", ["prod-a", "prod_a"])
@pytest.mark.parametrize("source", ["frontend", "router"])
async def test_a_namespace_is_written_with_dashes_or_underscores(
    namespace: str, source: str
) -> None:
    other = [
        each._replace(labels=each.labels | {"dynamo_namespace": "prod-ab", "instance": "other"})
        for each in frontend("a") + router("prod_a", 0.9)
    ]
    mine = frontend("a") + router("prod_a", 0.5)
    traffic = await read_window(other + mine, source=source, namespace=namespace)
    assert traffic.requests == pytest.approx(60.0 if source == "frontend" else 48.0)
    assert traffic.kv_hit_rate == pytest.approx(0.5)


async def test_routers_inside_frontends_have_the_namespace_of_the_workers() -> None:
    series = frontend("a") + router("prod_a_0a1b2c3d", 0.25)
    assert (await read_window(series, namespace="prod-a")).kv_hit_rate == pytest.approx(0.25)
    assert (await read_window(series, namespace="prod")).kv_hit_rate is None


@pytest.mark.parametrize("value", ["-5", "1.7e308", "1e13"])
async def test_a_number_that_no_traffic_has_is_an_error(value: str) -> None:
    def answer(_: web.Request) -> web.Response:
        result = [{"metric": {}, "value": [300.0, value]}]
        return web.json_response({"status": "success", "data": {"result": result}})

    async with served(answer) as url:
        traffic = PrometheusTraffic(PrometheusSourceConfig(url), MODEL)
        try:
            with pytest.raises(HttpError, match=r"requests of .*, expected 0 to 1e\+12"):
                await traffic.read_traffic(60.0)
        finally:
            await traffic.close()


async def test_a_counter_that_restarts_is_no_drop_of_traffic() -> None:
    series = frontend("a")
    restarted = [
        each._replace(
            samples=[(t, v if t < 200.0 else v - each.samples[13][1]) for t, v in each.samples]
        )
        for each in series
    ]
    assert restarted != series
    traffic = await read_window(restarted)
    assert traffic.requests == pytest.approx(60.0)
    assert traffic.isl == pytest.approx(3000.0)


@pytest.mark.parametrize("label", ["model", "model_name"])
async def test_the_accept_length_of_each_engine(label: str) -> None:
    of = {label: MODEL.lower(), "dynamo_namespace": "prod_a"}
    vllm = [
        scraped_series("vllm:spec_decode_num_accepted_tokens_total", steady(30.0), **of),
        scraped_series("vllm:spec_decode_num_drafts_total", steady(20.0), **of),
    ]
    assert (await read_window(vllm, namespace="prod-a")).accept_length == pytest.approx(2.5)
    assert (await read_window(vllm, namespace="b")).accept_length is None
    for gauge in ("sglang:spec_accept_length", "trtllm_spec_decode_acceptance_length"):
        busy = scraped_series(gauge, [2.0, 3.0] * 11, **of)
        idle = scraped_series(gauge, [0.0] * 22, **of, instance="idle")
        other = scraped_series(gauge, [7.0] * 22, **{label: "other"})
        traffic = await read_window([idle, busy, other])
        assert traffic.accept_length == pytest.approx(2.5)


async def test_a_window_without_requests_is_zero_and_not_nothing() -> None:
    idle = frontend("a", per_scrape=0.0)
    async with reading(idle) as (traffic, _):
        window = await traffic.read_traffic(180.0)
        assert (window.requests, window.isl) == (0.0, None)
        assert traffic.nothing_found is None


async def test_no_fault_before_a_whole_window_has_passed() -> None:
    async with reading([], age_s=170.0) as (traffic, _):
        assert (await traffic.read_traffic(180.0)).requests is None
        assert traffic.nothing_found is None


async def test_a_source_without_series_names_its_queries() -> None:
    async with reading([]) as (traffic, fake):
        await traffic.read_traffic(180.0)
        assert traffic.nothing_found is not None
        assert fake.asked[0] in traffic.nothing_found
        assert "scrapes the frontends" in traffic.nothing_found


async def test_a_wrong_name_is_shown_beside_the_names_there_are() -> None:
    async with reading(frontend("a"), model="other") as (traffic, fake):
        await traffic.read_traffic(180.0)
        assert traffic.nothing_found is not None
        assert "qwen/qwen3-8b in prod-a: check model_name" in traffic.nothing_found
        assert "requests, isl, osl" in traffic.nothing_found
        fake.series = frontend("a") + [
            each._replace(labels=each.labels | {"model": "other"}) for each in frontend("a")
        ]
        await traffic.read_traffic(180.0)
        assert traffic.nothing_found is None


def test_the_fake_agrees_with_prometheus(tmp_path: Path) -> None:
    fetched = ROOT / ".tools" / "promtool"
    promtool = str(fetched) if fetched.exists() else shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not there: scripts/promtool fetches it where apt can")
    series = [*frontend("a"), *frontend("b", starts=False), *router("prod_a_0a1b2c3d", 0.25)]
    series += [
        scraped_series(
            "vllm:spec_decode_num_accepted_tokens_total", steady(30.0), model=MODEL.lower()
        ),
        scraped_series("vllm:spec_decode_num_drafts_total", steady(20.0), model=MODEL.lower()),
        scraped_series("sglang:spec_accept_length", [2.0, 3.0, 0.5] * 7, model_name=MODEL),
    ]
    restarted = [v if i < 12 else v - 160.0 for i, v in enumerate(steady(5.0))]
    series.append(
        scraped_series(
            "dynamo_frontend_requests_started_total", restarted, model=MODEL, instance="c"
        )
    )
    # No scrape is at an end of the window, because releases of Prometheus differ about such
    # scrapes.
    fake = FakePrometheus(series, now_s=307.0)
    asked = []
    for of in (None, "prod-a"):
        for source in ("frontend", "router"):
            given = PrometheusSourceConfig("http://x", source=source, namespace=of)
            queries = TrafficQueries(given, MODEL)
            asked += [each.text for each in queries.for_window(180)] + [queries.census()]
    tests = {
        "interval": "15s",
        "input_series": [
            {"series": _notation(each), "values": " ".join(f"{v:g}" for _, v in each.samples)}
            for each in series
        ],
        "promql_expr_test": [
            {
                "expr": f"round({query}, 1e-6)",
                "eval_time": "307s",
                "exp_samples": [
                    {"labels": _notation(Series("", labels, [])), "value": _rounded(value)}
                    for labels, value in fake.evaluate(query)
                ],
            }
            for query in asked
        ],
    }
    assert any(each["exp_samples"] for each in tests["promql_expr_test"])  # type: ignore[index]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [tests]}))
    ran = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _rounded(value: float) -> float:
    """Round like `round(value, 1e-6)` of PromQL."""
    return math.floor(value * (1.0 / 1e-6) + 0.5) / (1.0 / 1e-6)


def _notation(series: Series) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in series.labels.items())
    return f"{series.name}{{{labels}}}"


async def test_a_wrong_model_name_is_a_fault_after_one_window() -> None:
    """The status shows the fault with the first tick of the throughput loop."""
    scene = Scene()
    async with reading(frontend("a"), model="other", age_s=60.0) as (traffic, fake):
        scene.source.answer = None
        scene.member.sources.prometheus = traffic
        await scene.member.observe_once()
        assert "prometheus" not in scene.member.faults
        told, effects, _ = await scene.tick()
        assert told.traffic is not None
        assert told.traffic.requests is None
        assert effects.diagnostics.throughput_reason == Reason.NO_TRAFFIC_DATA
        fault = scene.member.faults["prometheus"]
        assert "found nothing in 60 s for requests, isl, osl, query sum(" in fault
        assert "qwen/qwen3-8b in prod-a" in fault
        fake.series += [
            each._replace(labels=each.labels | {"model": "other"}) for each in frontend("a")
        ]
        await scene.tick()
        assert "prometheus" not in scene.member.faults
