"""Configuration of a planner, decoded from a YAML file to a frozen `PlannerConfig`."""

import re
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from select_service.planner.core.settings import DeploymentSettings

DEPLOYMENTS_MAX = 256
SELECTORS_MAX = 64
ALLOWED_HOSTS_MAX = 64
PLUGINS_MAX = 16

_PRINTABLE = r"^[^\x00-\x1f\x7f]+\Z"
"""Pattern of names: no control characters."""
_Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=_PRINTABLE)]
_Path = Annotated[str, Meta(min_length=1, max_length=4096, pattern=_PRINTABLE)]


def is_printable_name(given: str) -> bool:
    """Return whether a name or path of the command line is valid by the file's rules."""
    return re.search(_PRINTABLE, given) is not None


class VirtualConnectorConfig(
    Struct, frozen=True, tag="virtual", tag_field="kind", forbid_unknown_fields=True
):
    """Connector with decisions fetched by `GET /v1/decision`.

    `path` keeps the decision on restart.
    """

    path: _Path | None = None
    drain: bool = True
    drain_timeout_s: Annotated[float, Meta(ge=0)] = 300.0


class DryRunConnectorConfig(
    Struct, frozen=True, tag="dry-run", tag_field="kind", forbid_unknown_fields=True
):
    """Connector that only writes decisions, to a file or the log."""

    path: _Path | None = None


class KubernetesTargetConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Object that is scaled.

    component: component of a DynamoGraphDeployment; None means that of the role
    """

    kind: _Name
    name: _Name
    api_version: _Name | None = None
    component: _Name | None = None


class KubernetesConnectorConfig(
    Struct, frozen=True, tag="kubernetes", tag_field="kind", forbid_unknown_fields=True
):
    """Connector to Kubernetes with a target for each role of the mode.

    graph: DynamoGraphDeployment of roles without a target; None means the planner's own, if its
    operator names one
    Needs the extra `kubernetes`.
    """

    namespace: _Name | None = None
    graph: _Name | None = None
    prefill: KubernetesTargetConfig | None = None
    decode: KubernetesTargetConfig | None = None
    lease: _Name | None = "select-planner"
    drain: bool = True
    drain_timeout_s: Annotated[float, Meta(ge=0)] = 300.0
    worker_label: _Name = "select-service/worker-id"
    replace: Literal["delete", "annotate", "never"] = "delete"
    """Treatment of the pod of a worker that is out for `replace_after_s`."""


ConnectorConfig: TypeAlias = (
    VirtualConnectorConfig | DryRunConnectorConfig | KubernetesConnectorConfig
)


class PrometheusSourceConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Source of traffic in place of selectors. The token is read from its file.

    namespace: label `dynamo_namespace`, with dashes or underscores; None means all
    """

    url: str
    token_file: _Path | None = None
    ca_file: _Path | None = None
    source: Literal["frontend", "router"] = "frontend"
    namespace: _Name | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=60)] = 10.0


class ForwardPassSourceConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Source of forward-pass metrics over ZMQ: endpoints by role."""

    prefill: Annotated[tuple[str, ...], Meta(max_length=4096)] = ()
    decode: Annotated[tuple[str, ...], Meta(max_length=4096)] = ()


class ConfiguredLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of an engine by role, in place of unobserved values."""

    max_num_batched_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_num_seqs: Annotated[int, Meta(ge=1)] | None = None
    max_kv_tokens: Annotated[int, Meta(ge=1)] | None = None
    context_length: Annotated[int, Meta(ge=1)] | None = None


class DeploymentConfig(DeploymentSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of a model of a tenant: settings, sources and connector."""

    name: _Name
    model_name: _Name
    tenant_id: _Name = "default"
    priority: int = 100
    """Priority for the cluster's GPUs if they do not suffice; smaller first."""
    connector: ConnectorConfig = DryRunConnectorConfig()
    prometheus: PrometheusSourceConfig | None = None
    fpm: ForwardPassSourceConfig | None = None
    prefill_limits: ConfiguredLimits = ConfiguredLimits()
    decode_limits: ConfiguredLimits = ConfiguredLimits()
    warmup_trace: _Path | None = None
    """Request trace (Mooncake, Bailian or Weka) that the predictors learn before the first tick."""

    def core_settings(self) -> DeploymentSettings:
        """Return the core's settings, without sources and connector."""
        fields = DeploymentSettings.__struct_fields__
        return DeploymentSettings(**{field: getattr(self, field) for field in fields})


class PluginConfig(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"class_path": "class"}
):
    """Plugin of a stage: a class, an entry point, or a server.

    priority: rank of the answers, smaller first (load loop 10, throughput loop 20)
    """

    name: _Name
    stage: Literal["predict", "propose", "constrain"]
    class_path: _Name | None = None
    entry_point: _Name | None = None
    url: _Path | None = None
    options: dict[str, Any] = {}
    deployments: Annotated[tuple[_Name, ...], Meta(max_length=DEPLOYMENTS_MAX)] = ()
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    interval_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    timeout_s: Annotated[float, Meta(gt=0, le=5)] = 2.0
    on_failure: Literal["skip", "hold"] = "skip"
    hold_s: Annotated[float, Meta(ge=0, le=86_400)] = 300.0
    heartbeat_s: Annotated[float, Meta(ge=1, le=3600)] | None = None
    token_file: _Path | None = None


class ApiConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Address of the API for status, decisions and metrics."""

    host: _Name = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8095
    allowed_hosts: Annotated[tuple[_Name, ...], Meta(max_length=ALLOWED_HOSTS_MAX)] | None = None
    """Host names accepted besides addresses; None means the default of `host_names_for`."""


class ReportFileConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Report written to `path` at an interval, besides `GET /report`."""

    path: _Path
    interval_s: Annotated[float, Meta(ge=10)] = 3600.0


class PlannerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of the configuration file."""

    deployments: Annotated[
        tuple[DeploymentConfig, ...], Meta(min_length=1, max_length=DEPLOYMENTS_MAX)
    ]
    selectors: Annotated[tuple[str, ...], Meta(max_length=SELECTORS_MAX)] = ()
    api_key_file: _Path | None = None
    """File with the key for selectors, read for each request."""
    ca_file: _Path | None = None
    """PEM file of CAs trusted besides the system's, for selectors and plugins."""
    client_cert_file: _Path | None = None
    """PEM file of the certificate for servers that require one."""
    client_key_file: _Path | None = None
    """Private key of the certificate."""
    cluster_gpus: Annotated[int, Meta(ge=0)] | None = None
    plugins: Annotated[tuple[PluginConfig, ...], Meta(max_length=PLUGINS_MAX)] = ()
    api: ApiConfig = ApiConfig()
    decision_log: _Path | None = None
    file_mode: Annotated[str, Meta(pattern="^0?6[0246][0246]$")] = "0600"
    """Octal mode of the decision log and of stored decisions at creation."""
    report: ReportFileConfig | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
