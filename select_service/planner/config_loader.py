"""Loader of a planner's configuration from YAML. Every fault is one line and prevents the start."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from select_service.base.command_line import UsageError
from select_service.base.suggestions import nearest_name, printable_name
from select_service.files.yaml_document import read_document
from select_service.planner.config import (
    ConnectorConfig,
    DeploymentConfig,
    KubernetesConnectorConfig,
    PlannerConfig,
    PluginConfig,
)
from select_service.planner.core.schedule import scale_interval_s
from select_service.planner.core.settings import NEVER_S
from select_service.planner.validation import find_config_faults

ConfigProfile: TypeAlias = Literal["ours", "document"]
PROFILES: Final = ("ours", "document")

DOCUMENT_DEFAULTS: Final[Mapping[str, Any]] = {
    "load_predictor": "arima",
    "forecast_quantile": 0.5,
    "lead": False,
    "robust": False,
    "load_guards": False,
    "step": "single",
    "sizing": "mean",
    "stabilise": False,
    "gradual_reconcile": False,
    "replace_lost": False,
    "spares_part": 0.0,
}
"""Defaults of `--profile document`: the settings of Dynamo's planner."""


_REFERENCE_NAMES: Final[Mapping[str, str]] = {
    "load_predictor_warmup_trace": "warmup_trace",
    "ttft": "ttft_ms",
    "itl": "itl_ms",
    "proposers": "plugins",
}
"""Map from former names, and those of Dynamo's planner, to the names of settings."""


_KINDS = {
    name: kind
    for record in (PlannerConfig, DeploymentConfig, KubernetesConnectorConfig, PluginConfig)
    for name, kind in get_type_hints(record).items()
}
_LITERALS: Final = {
    name: [str(word) for word in get_args(kind)]
    for name, kind in _KINDS.items()
    if get_origin(kind) is Literal
}
_TAGS: Final = [str(kind.__struct_config__.tag) for kind in get_args(ConnectorConfig)]
_GOT = re.compile("Invalid (?:enum )?value '(.*)'")
_TYPES: Final = {
    "float": "a number",
    "int": "a whole number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}
"""Map from msgspec's type names to words of a YAML file."""


class PlannerConfigError(UsageError):
    """Error of one line that names the wrong setting and the expected value."""


def read_config(path: str, profile: ConfigProfile = "ours") -> PlannerConfig:
    """Read a configuration file. Raises PlannerConfigError."""
    try:
        document = read_document(path)
    except ValueError as error:
        raise PlannerConfigError(f"{path}: {error}") from None
    try:
        return convert_config(document, profile)
    except PlannerConfigError as error:
        raise PlannerConfigError(f"{path}: {error}") from None


def convert_config(document: object, profile: ConfigProfile = "ours") -> PlannerConfig:
    """Convert the content of a YAML file. Raises PlannerConfigError."""
    try:
        config = msgspec.convert(_with_defaults(document, profile), PlannerConfig)
    except msgspec.ValidationError as error:
        raise PlannerConfigError(_explain_fault(str(error))) from None
    for fault in find_config_faults(config):
        raise PlannerConfigError(fault)
    deployments = tuple(map(_complete_deployment, config.deployments))
    return msgspec.structs.replace(config, deployments=deployments)


def _with_defaults(document: object, profile: ConfigProfile) -> object:
    """Return the document with the profile's values where none is given."""
    if profile == "ours" or not isinstance(document, dict):
        return document
    deployments = document.get("deployments")
    if not isinstance(deployments, list):
        return document
    # The file's own values come last, so the profile never overrides an explicit setting.
    filled = [
        {**DOCUMENT_DEFAULTS, **each} if isinstance(each, dict) else each for each in deployments
    ]
    return {**document, "deployments": filled}


def _complete_deployment(deployment: DeploymentConfig) -> DeploymentConfig:
    """Return the settings with derived values: loops of easy modes, and the interval of ticks."""
    if deployment.optimization_target != "sla":
        deployment = msgspec.structs.replace(
            deployment, enable_load_scaling=True, enable_throughput_scaling=False
        )
    chosen = deployment.connector
    if isinstance(chosen, KubernetesConnectorConfig) and chosen.replace == "never":
        deployment = msgspec.structs.replace(deployment, replace_after_s=NEVER_S)
    if deployment.scale_interval_seconds is None:
        # Stored in the settings, so that the decision log shows the interval that was really used.
        interval_s = scale_interval_s(deployment)
        deployment = msgspec.structs.replace(deployment, scale_interval_seconds=interval_s)
    return deployment


def _explain_fault(fault: str) -> str:
    """Return msgspec's message after its place, with a suggestion for an unknown field."""
    begin = "Object contains unknown field `"
    if not fault.startswith(begin):
        return _place_fault(" ".join(fault.split()))
    name = fault[len(begin) :].split("`")[0]
    known = DeploymentConfig.__struct_fields__ + PlannerConfig.__struct_fields__
    if "plugins" in fault:
        known = PluginConfig.__struct_encode_fields__
    meant = _REFERENCE_NAMES.get(name) or nearest_name(name, known)
    text = f"unknown setting `{printable_name(name)}`"
    if " - at " in fault:
        text += f" at {fault.split(' - at ')[1]}"
    return text if meant is None else f"{text}; did you mean `{meant}`?"


def _place_fault(fault: str) -> str:
    """Return the fault after its place, with the allowed values."""
    text, _, place = fault.partition(" - at `$.")
    place = place.rstrip("`")
    for name, words in _TYPES.items():
        text = text.replace(f"`{name}`", words)
    known = _TAGS if place.endswith("connector.kind") else _LITERALS.get(place.rpartition(".")[2])
    if known and (got := _GOT.fullmatch(text)):
        text = f"expected one of {', '.join(known)}, got `{printable_name(got[1])}`"
    return f"{place}: {text[:1].lower()}{text[1:]}" if place else text
