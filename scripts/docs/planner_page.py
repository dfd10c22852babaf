# ruff: noqa: E501 -- long lines are lines of the page
"""Page of the planner's file: settings with their defaults, and all reason codes."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import NODEFAULT
from msgspec.structs import fields

from scripts.docs.markdown import code, marked, table
from select_service.planner.config import DeploymentConfig, PlannerConfig, PluginConfig
from select_service.planner.config_loader import DOCUMENT_DEFAULTS
from select_service.planner.core.reasons import Reason

INTRODUCTION = """\
# Planner file

The YAML file of `select-planner --config FILE`; `select-planner check FILE` validates it. The
[guide](../guides/planner.md) shows complete files. With `--profile document` the planner decides like Dynamo's planner
(ai-dynamo 1.6.1); the last column has the defaults that differ.

## Settings of the file
"""
FILE: Mapping[str, str] = {
    "deployments": "list of deployments, at most 256",
    "selectors": "URLs of all selectors, each once, at most 64",
    "api_key_file": "file with the key sent to selectors; read for each request",
    "ca_file": "PEM file of additional CAs for selectors, plugins and Prometheus",
    "client_cert_file": "PEM file of the client certificate; followed like all TLS files",
    "client_key_file": "PEM file of its private key",
    "cluster_gpus": "GPUs that all deployments share",
    "plugins": "own predictors, proposers and constraints, at most 16; see below",
    "api": "`host`, `port` (8095) and `allowed_hosts` of status, decisions and metrics",
    "decision_log": "file with one JSON line for each tick",
    "file_mode": "octal mode of the decision log and of connector files",
    "report": "`path` and `interval_s` of a report that is written regularly",
    "log_level": "`debug`, `info`, `warning` or `error`",
    "log_format": "`text` or `json`",
}
DEPLOYMENT: Mapping[str, str] = {
    "name": "name of the deployment",
    "model_name": "observed model",
    "tenant_id": "observed tenant",
    "mode": "`disagg`, `prefill`, `decode`, or `agg`: engines that do both and count as decode",
    "optimization_target": "`sla`, or thresholds alone: `throughput`, `latency`, `load`",
    "ttft_ms": "target of the time to the first token",
    "itl_ms": "target of the time between tokens",
    "attainment": "share of the requests that keep both targets",
    "enable_throughput_scaling": "loop that looks ahead by forecasts",
    "enable_load_scaling": "loop that corrects by the current load of the engines",
    "throughput_adjustment_interval_seconds": "interval of the throughput loop",
    "load_adjustment_interval_seconds": "interval of the load loop",
    "scale_interval_seconds": "time between two ticks, at least 0.01; default: greatest common divisor of the intervals",
    "adaptive_interval": "compare demand with the forecast as often as replicas start, up to six times an interval, and add replicas at once",
    "load_predictor": "`auto`, `constant`, `kalman`, `seasonal`, `arima`, `prophet`",
    "load_predictor_log1p": "forecast logarithms",
    "kalman_q_level": "Kalman predictor: variance of the level",
    "kalman_q_trend": "Kalman predictor: variance of the trend",
    "kalman_r": "Kalman predictor: variance of a measurement",
    "kalman_min_points": "Kalman predictor: least number of points",
    "prophet_window_size": "Prophet predictor: number of points",
    "forecast_quantile": "quantile of observed over planned demand; 0.5: no margin",
    "lead": "forecast for the end of a start-up",
    "warmup_trace": "request trace (Mooncake, Bailian or Weka) that the predictors read before the first tick",
    "max_num_fpm_samples": "samples of a performance model",
    "fpm_sample_bucket_size": "load buckets over which samples are spread",
    "load_min_observations": "least number of samples of a performance model",
    "robust": "outliers and old samples count less",
    "profile_results_dir": "measured profile, NPZ or JSON, see `select-planner profile`",
    "sizing": "`queue`: waiting times and distributions count; `mean`: averages alone",
    "load_scaling_down_sensitivity": "percent of the latency room that must suffice with one replica less",
    "prefill_scale_up_queue_tokens": "target `load`: queued tokens above which prefill grows",
    "prefill_scale_down_queue_tokens": "target `load`: queued tokens below which prefill shrinks",
    "decode_scale_up_kv_rate": "target `load`: percent of KV cache above which decode grows",
    "decode_scale_down_kv_rate": "target `load`: percent of KV cache below which decode shrinks",
    "load_guards": "rules for hot and silent engines, medians of three ticks, the queue of the selector, sleeping and waking",
    "step": "`single`, or `proportional`: up to four replicas at once by load",
    "stabilise": "windows, cool-downs and tolerance of changes",
    "down_window_s": "window in which nothing may have needed more replicas before one goes",
    "down_cooldown_s": "time after a change without scaling down",
    "startup_s": "start-up time of a replica until it has been measured",
    "min_endpoint": "least replicas of each role; 0: scale to zero",
    "prefill_min_endpoint": "the same for prefill alone",
    "decode_min_endpoint": "the same for decode alone",
    "min_gpu_budget": "least GPUs of the deployment; -1: no limit",
    "max_gpu_budget": "most GPUs of the deployment; -1: no limit",
    "gradual_reconcile": "reach a lowered budget by one replica a tick",
    "max_throughput_scaling_replicas": "largest change of one decision and role",
    "prefill_engine_num_gpu": "GPUs of a prefill replica; default: value of the platform, else 1",
    "decode_engine_num_gpu": "GPUs of a decode replica; default: value of the platform, else 1",
    "speculative_nextn": "speculative tokens",
    "scaling_max_wait": "seconds after which replicas that move without any change no longer block others",
    "pending_stuck_secs": "seconds without progress after which a start-up is withdrawn; at least `startup_s` and twice the measured start-up time",
    "advisory": "decide and record, scale nothing",
    "replace_lost": "replace replicas that health has taken out",
    "replace_after_s": "seconds after which a lost replica is replaced in its place",
    "spares_part": "part of the needed replicas added as hot spares",
    "spares_from": "needed replicas of a role with hot spares",
    "priority": "smaller values go first if `cluster_gpus` do not suffice",
    "prefill_limits": "`max_num_batched_tokens`, `max_num_seqs`, `max_kv_tokens`, `context_length` of an engine; default: observed",
    "decode_limits": "the same for decode engines",
    "connector": "`kind`: `virtual`, `dry-run` or `kubernetes`; see the guide",
    "prometheus": "traffic from Prometheus: `url`, `token_file`, `ca_file`, `source` (`frontend`, `router`), `namespace`, `timeout_s`",
    "fpm": "ZMQ endpoints of forward-pass metrics: `prefill`, `decode`",
}
PLUGIN: Mapping[str, str] = {
    "name": "name in status, report, metrics and log",
    "stage": "`predict`, `propose` or `constrain`",
    "class": "class in this process, `package.module:Class`",
    "entry_point": "instead: name in the group `select_service.planner_plugins`",
    "url": "instead: `http://`, `https://`, `grpc://` or `grpcs://` (extra `grpc`)",
    "options": "keyword arguments of the class",
    "deployments": "names of deployments; default: all",
    "priority": "rank of the answers, smaller first; the load loop has 10, throughput 20",
    "interval_s": "least time between two calls; the last answer counts meanwhile; 0: every tick",
    "timeout_s": "time for an answer, at most 5",
    "on_failure": "`skip`: no opinion; `hold`: the last answer counts for `hold_s`",
    "hold_s": "longest time for which an answer is held",
    "heartbeat_s": "time between heartbeats to a `url`; without an answer the plugin is not called",
    "token_file": "file with the bearer token for a `url`; read for each call",
}
PLUGINS = """\
## Settings of a plugin

What plugins see and answer: [guide](../guides/planner-plugins.md), [JSON schema](planner-plugin.schema.json).
"""
REASONS = """\
## Reason codes

Every tick records codes with these sentences, in `GET /v1/status` and in the decision log.
"""


def planner_page() -> str:
    """Return the page; every setting needs a meaning here."""
    return marked(__name__, "\n\n".join(_sections()))


def _sections() -> Iterator[str]:
    yield INTRODUCTION.strip()
    yield table(("setting", "default", "meaning"), (row[:3] for row in _rows(PlannerConfig, FILE)))
    yield "## Settings of a deployment"
    yield table(("setting", "default", "meaning", "document"), _rows(DeploymentConfig, DEPLOYMENT))
    yield PLUGINS.strip()
    yield table(("setting", "default", "meaning"), (row[:3] for row in _rows(PluginConfig, PLUGIN)))
    yield REASONS.strip()
    yield table(("code", "meaning"), ((code(reason), reason.sentence) for reason in Reason))


def _rows(config: type, meanings: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    known = {field.encode_name: field.default for field in fields(config)}
    if known.keys() ^ meanings.keys():
        message = f"no meaning for {sorted(known.keys() ^ meanings.keys())}"
        raise KeyError(message)
    for name, meaning in meanings.items():
        document = (
            code(_render_default(DOCUMENT_DEFAULTS[name]))
            if name in DOCUMENT_DEFAULTS and name != "step"
            else ""
        )
        yield code(name), code(_render_default(known[name])), meaning, document


def _render_default(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, int | float) else _text(default)


def _text(default: Any) -> str:
    return default if isinstance(default, str) and default is not NODEFAULT else ""
