"""The configuration of a planner: what a YAML file says -> one frozen `PlannerConfig`."""

import re
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from select_service.planner.core.settings import Settings

DEPLOYMENTS_MAX = 256
SELECTORS_MAX = 64
ALLOWED_HOSTS_MAX = 64
PROPOSERS_MAX = 16

_PRINTABLE = r"^[^\x00-\x1f\x7f]+\Z"
"""No file, host or label has a name with control characters."""
_Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=_PRINTABLE)]
_Path = Annotated[str, Meta(min_length=1, max_length=4096, pattern=_PRINTABLE)]


def is_text(given: str) -> bool:
    """Whether a name or path of the command line is what one of the file must be."""
    return re.search(_PRINTABLE, given) is not None


class VirtualConnector(
    Struct, frozen=True, tag="virtual", tag_field="kind", forbid_unknown_fields=True
):
    """Whoever asks `GET /v1/decision` scales. `path` keeps the decision over a restart."""

    path: _Path | None = None
    drain: bool = True
    drain_timeout_s: Annotated[float, Meta(ge=0)] = 300.0


class DryRunConnector(
    Struct, frozen=True, tag="dry-run", tag_field="kind", forbid_unknown_fields=True
):
    """Decisions go to a file (or only to the log), and nothing is scaled."""

    path: _Path | None = None


class KubernetesTarget(Struct, frozen=True, forbid_unknown_fields=True):
    """The object that is scaled. `component`: of a DynamoGraphDeployment."""

    kind: _Name
    name: _Name
    api_version: _Name | None = None
    component: _Name | None = None


class KubernetesConnector(
    Struct, frozen=True, tag="kubernetes", tag_field="kind", forbid_unknown_fields=True
):
    """Needs the extra `kubernetes`. One target for each role of the mode."""

    namespace: _Name | None = None
    prefill: KubernetesTarget | None = None
    decode: KubernetesTarget | None = None
    lease: _Name | None = "select-planner"
    drain: bool = True
    drain_timeout_s: Annotated[float, Meta(ge=0)] = 300.0
    worker_label: _Name = "select-service/worker-id"


Connector: TypeAlias = VirtualConnector | DryRunConnector | KubernetesConnector


class PrometheusSource(Struct, frozen=True, forbid_unknown_fields=True):
    """Traffic from Prometheus where no selector tells it. The token is read from its file.

    namespace: label `dynamo_namespace` of the routers; None: all routers that Prometheus knows
    """

    url: str
    token_file: _Path | None = None
    ca_file: _Path | None = None
    source: Literal["frontend", "router"] = "frontend"
    namespace: _Name | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=60)] = 10.0


class FpmSource(Struct, frozen=True, forbid_unknown_fields=True):
    """Forward-pass metrics over ZMQ: endpoints by role."""

    prefill: Annotated[tuple[str, ...], Meta(max_length=4096)] = ()
    decode: Annotated[tuple[str, ...], Meta(max_length=4096)] = ()


class LimitsGiven(Struct, frozen=True, forbid_unknown_fields=True):
    """What an engine of a role can hold, where no observation says it."""

    max_num_batched_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_num_seqs: Annotated[int, Meta(ge=1)] | None = None
    max_kv_tokens: Annotated[int, Meta(ge=1)] | None = None
    context_length: Annotated[int, Meta(ge=1)] | None = None


class DeploymentConfig(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of one tenant: its settings, where it is observed and what is scaled."""

    name: _Name
    model_name: _Name
    tenant_id: _Name = "default"
    priority: int = 100
    """Smaller goes first where the cluster's GPUs do not suffice for all."""
    connector: Connector = DryRunConnector()
    prometheus: PrometheusSource | None = None
    fpm: FpmSource | None = None
    prefill_limits: LimitsGiven = LimitsGiven()
    decode_limits: LimitsGiven = LimitsGiven()
    warmup_trace: _Path | None = None
    """Mooncake JSONL: what the predictors have seen before the first tick."""


class ExternalProposer(Struct, frozen=True, forbid_unknown_fields=True):
    """Asked by POST in each tick; a smaller priority wins (throughput has 20, load 10)."""

    name: _Name
    url: str
    priority: int = 0


class ApiConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Where status, decisions and metrics are served."""

    host: _Name = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8095
    allowed_hosts: Annotated[tuple[_Name, ...], Meta(max_length=ALLOWED_HOSTS_MAX)] | None = None
    """Names under which it may be asked for, besides addresses; None: see `names_at`."""


class ReportConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A report is written to `path` every so often, besides `GET /report`."""

    path: _Path
    interval_s: Annotated[float, Meta(ge=10)] = 3600.0


class PlannerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file says."""

    deployments: Annotated[
        tuple[DeploymentConfig, ...], Meta(min_length=1, max_length=DEPLOYMENTS_MAX)
    ]
    selectors: Annotated[tuple[str, ...], Meta(max_length=SELECTORS_MAX)] = ()
    api_key_file: _Path | None = None
    """Holds the key that selectors ask for; read for each request."""
    ca_file: _Path | None = None
    """CAs in PEM that are believed besides the system's, of selectors and proposers."""
    client_cert_file: _Path | None = None
    """Certificate in PEM, for those of them that ask for one."""
    client_key_file: _Path | None = None
    """Its private key."""
    cluster_gpus: Annotated[int, Meta(ge=0)] | None = None
    proposers: Annotated[tuple[ExternalProposer, ...], Meta(max_length=PROPOSERS_MAX)] = ()
    api: ApiConfig = ApiConfig()
    decision_log: _Path | None = None
    file_mode: Annotated[str, Meta(pattern="^0?6[0246][0246]$")] = "0600"
    """Octal mode of the decision log and of kept decisions, when they are created."""
    report: ReportConfig | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
