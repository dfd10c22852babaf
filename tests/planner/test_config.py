"""Tests of the planner's file: derived settings, and a single line for each fault."""

from typing import Any

import pytest

from select_service.planner.config import DryRunConnectorConfig, VirtualConnectorConfig
from select_service.planner.config_loader import PlannerConfigError, convert_config, read_config
from select_service.planner.core.settings import NEVER_S, scaled_roles
from select_service.planner.core.tick_input import Role

KUBERNETES: dict[str, Any] = {
    "kind": "kubernetes",
    "decode": {"kind": "Deployment", "name": "decode"},
}


PATHS = (("a", "/d/one.json"), ("b", "/d/../d/one.json"))


def of(name: str, connector: dict[str, Any], **deployment: Any) -> dict[str, Any]:
    return {"name": name, "model_name": name, "connector": connector, **deployment}


def document(top: dict[str, Any] | None = None, **deployment: Any) -> dict[str, Any]:
    own = {"name": "chat", "model_name": "llama", **deployment}
    return {"selectors": ["http://selector:8092"], "deployments": [own], **(top or {})}


def test_the_least_file_is_advice_in_a_dry_run():
    config = convert_config(document())
    (only,) = config.deployments
    assert (only.mode, only.sizing, only.stabilise) == ("disagg", "queue", True)
    assert only.connector == DryRunConnectorConfig()
    assert only.scale_interval_seconds == 180.0


def test_pods_that_are_never_replaced_are_never_due():
    for mode, after_s in (("delete", 600.0), ("annotate", 600.0), ("never", NEVER_S)):
        (only,) = convert_config(
            document(mode="agg", connector=KUBERNETES | {"replace": mode})
        ).deployments
        assert only.replace_after_s == after_s


def test_ticks_come_at_the_greatest_common_divisor_of_both_loops():
    given = document(
        enable_load_scaling=True,
        load_adjustment_interval_seconds=7.5,
        throughput_adjustment_interval_seconds=60,
    )
    assert convert_config(given).deployments[0].scale_interval_seconds == 7.5


def test_easy_modes_scale_by_load_alone():
    (only,) = convert_config(document(optimization_target="latency")).deployments
    assert (only.enable_load_scaling, only.enable_throughput_scaling) == (True, False)
    assert only.scale_interval_seconds == 5.0


def test_the_document_s_profile_counts_where_nothing_was_given():
    given = document(load_predictor="constant", robust=True)
    (only,) = convert_config(given, "document").deployments
    assert (only.sizing, only.stabilise, only.load_guards) == ("mean", False, False)
    assert (only.load_predictor, only.robust) == ("constant", True)


def test_engines_that_do_both_count_as_decode():
    (only,) = convert_config(document(mode="agg")).deployments
    assert scaled_roles(only) == (Role.DECODE,)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"ttft_sm": 3},
            "unknown setting `ttft_sm` at `$.deployments[0]`; did you mean `ttft_ms`?",
        ),
        ({"load_predictor_warmup_trace": "x"}, "did you mean `warmup_trace`?"),
        ({"ttft_ms": 0}, "ttft_ms: expected more than 0, got 0"),
        ({"replace_after_s": -1}, "replace_after_s: expected 0 to 1e+09, got -1"),
        ({"spares_part": 2}, "spares_part: expected 0 to 1, got 2"),
        ({"spares_from": 0}, "spares_from: expected 1 to"),
        (
            {"connector": KUBERNETES | {"replace": "kill"}},
            "connector.replace: expected one of delete, annotate, never, got `kill`",
        ),
        ({"ttft_ms": float("nan")}, "ttft_ms: expected a finite number, got nan"),
        ({"ttft_ms": "soon"}, "deployments[0].ttft_ms: expected a number, got a text"),
        ({"mode": "both"}, "mode: expected one of disagg, prefill, decode, agg, got `both`"),
        ({"enable_throughput_scaling": False}, "both loops are off"),
        (
            {"enable_load_scaling": True, "load_adjustment_interval_seconds": 200},
            "expected more than load_adjustment_interval_seconds (200), got 180",
        ),
        ({"scale_interval_seconds": 7}, "expected a divisor of 180, got 7"),
        ({"throughput_adjustment_interval_seconds": 0.0001}, "expected a divisor of 0.0001, got 0"),
        (
            {"enable_load_scaling": True, "load_adjustment_interval_seconds": 5.001},
            "scale_interval_seconds: intervals 5.001 and 180 need a tick every 3 ms",
        ),
        ({"max_gpu_budget": 1}, "the minimum replicas need 2 GPUs, got 1"),
        ({"min_gpu_budget": 9}, "expected at most max_gpu_budget (8), got 9"),
        ({"fpm_sample_bucket_size": 15}, "expected a perfect square such as 16, got 15"),
        ({"load_min_observations": 2}, "load_min_observations: expected 5 to"),
        ({"load_min_observations": 65}, "expected at most max_num_fpm_samples (64), got 65"),
        (
            {"optimization_target": "load", "decode_scale_up_kv_rate": 30},
            "decode_scale_down_kv_rate: expected less than decode_scale_up_kv_rate (30), got 30",
        ),
        (
            {"optimization_target": "load", "prefill_scale_up_queue_tokens": 400},
            "expected less than prefill_scale_up_queue_tokens (400), got 500",
        ),
        ({"warmup_trace": "a\0b"}, "matching regex"),
        ({"startup_s": 400}, "pending_stuck_secs: expected at least startup_s (400), got 300"),
        ({"attainment": 1.0}, "attainment: expected 0.5 to 0.9999, got 1"),
        (
            {"connector": {"kind": "cloud"}},
            "kind: expected one of virtual, dry-run, kubernetes, got `cloud`",
        ),
        ({"connector": KUBERNETES}, "connector.prefill: expected a target in mode disagg"),
        ({"prometheus": {"url": "ftp://x"}}, "does not begin with http:// or https://"),
    ],
)
def test_a_fault_of_a_deployment_is_one_line(given, said):
    with pytest.raises(PlannerConfigError) as caught:
        convert_config(document(**given))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("top", "said"),
    [
        ({"selectors": []}, "no source of traffic"),
        ({"selectors": ["selector:8092"]}, "does not begin with http:// or https://"),
        ({"deployments": []}, "length >= 1"),
        (
            {"client_key_file": "tls.key"},
            "client_cert_file and client_key_file must be given together",
        ),
        ({"cluster_gpus": 1}, "the minimum replicas of all deployments need 2 GPUs, got 1"),
        ({"depolyments": []}, "did you mean `deployments`?"),
        ({"deployments": [{"name": "a", "model_name": "m"}] * 2}, "name `a` is given twice"),
        (
            {"selectors": ["http://selector:8092", "http://selector:8092/"]},
            "selectors: `http://selector:8092` is given twice",
        ),
        (
            {"deployments": [of(name, {"kind": "virtual", "path": path}) for name, path in PATHS]},
            "the decision in `/d/one.json` is the target of two roles or deployments",
        ),
        (
            {"deployments": [of(name, KUBERNETES, mode="agg") for name in "ab"]},
            "connector: Deployment decode is the target of two roles or deployments",
        ),
        (
            {"deployments": [of("a", {**KUBERNETES, "prefill": KUBERNETES["decode"]})]},
            "connector: Deployment decode is the target of two roles or deployments",
        ),
        ({"api": {"host": "localhost\0"}}, "matching regex"),
    ],
)
def test_a_fault_of_the_whole_file_is_one_line(top, said):
    with pytest.raises(PlannerConfigError) as caught:
        convert_config(document(top))
    assert said in str(caught.value)


def test_a_missing_predictor_names_the_extra_to_install(monkeypatch):
    monkeypatch.setattr("select_service.planner.validation.find_spec", lambda name: None)
    with pytest.raises(PlannerConfigError, match=r"pip install 'select-service\[prophet\]'"):
        convert_config(document(load_predictor="prophet"))


def test_a_file_is_named_with_its_fault(tmp_path):
    path = tmp_path / "planner.yaml"
    with pytest.raises(PlannerConfigError, match="No such file"):
        read_config(str(path))
    path.write_text("deployments: [")
    with pytest.raises(PlannerConfigError, match=str(path)):
        read_config(str(path))
    path.write_text(
        "selectors: [http://localhost:8092]\n"
        "deployments:\n- {name: a, model_name: m, connector: {kind: virtual}}\n"
    )
    assert read_config(str(path)).deployments[0].connector == VirtualConnectorConfig()


def test_unused_thresholds_are_not_checked():
    (only,) = convert_config(document(decode_scale_up_kv_rate=10)).deployments
    assert only.decode_scale_down_kv_rate == 30.0


def test_deployments_may_scale_targets_of_one_name_in_their_own_namespaces():
    each = [of(name, {**KUBERNETES, "namespace": name}, mode="agg") for name in "ab"]
    assert len(convert_config(document({"deployments": each})).deployments) == 2
