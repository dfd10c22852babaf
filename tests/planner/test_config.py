"""The planner's file: what follows from it, and one line for each thing that makes no sense."""

from pathlib import Path
from typing import Any

import pytest

from select_service.planner.config import DryRunConnector, VirtualConnector
from select_service.planner.core.inputs import Role
from select_service.planner.core.settings import roles_of
from select_service.planner.reading import ConfigError, config_of, read_config

KUBERNETES = {"kind": "kubernetes", "decode": {"kind": "Deployment", "name": "decode"}}


def document(top: dict[str, Any] | None = None, **deployment: Any) -> dict[str, Any]:
    own = {"name": "chat", "model_name": "llama", **deployment}
    return {"selectors": ["http://selector:8092"], "deployments": [own], **(top or {})}


def test_the_least_file_is_advice_in_a_dry_run() -> None:
    config = config_of(document())
    (only,) = config.deployments
    assert (only.mode, only.sizing, only.stabilise) == ("disagg", "queue", True)
    assert only.connector == DryRunConnector()
    assert only.scale_interval_seconds == 180.0


def test_ticks_come_at_the_greatest_common_divisor_of_both_loops() -> None:
    given = document(
        enable_load_scaling=True,
        load_adjustment_interval_seconds=7.5,
        throughput_adjustment_interval_seconds=60,
    )
    assert config_of(given).deployments[0].scale_interval_seconds == 7.5


def test_easy_modes_scale_by_load_alone() -> None:
    (only,) = config_of(document(optimization_target="latency")).deployments
    assert (only.enable_load_scaling, only.enable_throughput_scaling) == (True, False)
    assert only.scale_interval_seconds == 5.0


def test_the_document_s_profile_counts_where_nothing_was_given() -> None:
    given = document(load_predictor="constant", robust=True)
    (only,) = config_of(given, "document").deployments
    assert (only.sizing, only.stabilise, only.load_guards) == ("mean", False, False)
    assert (only.load_predictor, only.robust) == ("constant", True)


def test_engines_that_do_both_count_as_decode() -> None:
    (only,) = config_of(document(mode="agg")).deployments
    assert roles_of(only) == (Role.DECODE,)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"ttft_sm": 3},
            "unknown setting `ttft_sm` at `$.deployments[0]`; did you mean `ttft_ms`?",
        ),
        ({"ttft_ms": 0}, "ttft_ms: expected more than 0, got 0"),
        ({"ttft_ms": float("nan")}, "ttft_ms: expected a finite number, got nan"),
        ({"ttft_ms": "soon"}, "Expected `float`, got `str`"),
        ({"mode": "both"}, "Invalid enum value 'both'"),
        ({"enable_throughput_scaling": False}, "or enable_load_scaling must be true"),
        (
            {"enable_load_scaling": True, "load_adjustment_interval_seconds": 200},
            "expected more than load_adjustment_interval_seconds (200), got 180",
        ),
        ({"scale_interval_seconds": 7}, "expected a divisor of 180, got 7"),
        ({"max_gpu_budget": 1}, "the least replicas need 2 GPUs, got 1"),
        ({"min_gpu_budget": 9}, "expected at most max_gpu_budget (8), got 9"),
        ({"fpm_sample_bucket_size": 15}, "expected a perfect square as 16, got 15"),
        ({"load_min_observations": 2}, "load_min_observations: expected 5 to"),
        ({"startup_s": 400}, "pending_stuck_secs: expected at least startup_s (400), got 300"),
        ({"attainment": 1.0}, "attainment: expected 0.5 to 0.9999, got 1"),
        ({"connector": {"kind": "cloud"}}, "Invalid value 'cloud'"),
        ({"connector": KUBERNETES}, "connector.prefill: expected a target in mode disagg"),
        ({"prometheus": {"url": "ftp://x"}}, "does not begin with http:// or https://"),
    ],
)
def test_one_line_says_what_is_wrong(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(document(**given))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("top", "said"),
    [
        ({"selectors": []}, "nothing to observe"),
        ({"selectors": ["selector:8092"]}, "does not begin with http:// or https://"),
        ({"deployments": []}, "length >= 1"),
        ({"cluster_gpus": 1}, "the least replicas of all deployments need 2 GPUs, got 1"),
        ({"depolyments": []}, "did you mean `deployments`?"),
        (
            {"deployments": [{"name": "a", "model_name": "m"}] * 2},
            "the name `a` is there twice",
        ),
    ],
)
def test_and_of_the_whole_file(top: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(document(top))
    assert said in str(caught.value)


def test_a_predictor_that_is_not_installed_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("select_service.planner.judging.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'select-service\[prophet\]'"):
        config_of(document(load_predictor="prophet"))


def test_a_file_is_named_with_its_fault(tmp_path: Path) -> None:
    path = tmp_path / "planner.yaml"
    with pytest.raises(ConfigError, match="No such file"):
        read_config(str(path))
    path.write_text("deployments: [")
    with pytest.raises(ConfigError, match=str(path)):
        read_config(str(path))
    path.write_text(
        "selectors: [http://localhost:8092]\n"
        "deployments:\n- {name: a, model_name: m, connector: {kind: virtual}}\n"
    )
    assert read_config(str(path)).deployments[0].connector == VirtualConnector()
