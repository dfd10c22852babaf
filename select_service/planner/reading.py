"""A YAML file -> the configuration of a planner. Every fault is one line, and stops the start."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from select_service.command_line import UsageError
from select_service.planner.config import Connector, DeploymentConfig, PlannerConfig
from select_service.planner.core.settings import intervals_of
from select_service.planner.judging import faults
from select_service.spelling import nearest, shown
from select_service.yaml_document import read_document

Profile: TypeAlias = Literal["ours", "document"]
PROFILES: Final = ("ours", "document")

DOCUMENT: Final[Mapping[str, Any]] = {
    "load_predictor": "arima",
    "forecast_quantile": 0.5,
    "lead": False,
    "robust": False,
    "load_guards": False,
    "step": "single",
    "sizing": "mean",
    "stabilise": False,
    "gradual_reconcile": False,
}
"""What `--profile document` makes of settings that nobody gave: the planner of the document."""


_OF_REFERENCE: Final[Mapping[str, str]] = {
    "load_predictor_warmup_trace": "warmup_trace",
    "ttft": "ttft_ms",
    "itl": "itl_ms",
}
"""Names of the reference planner for settings that are called otherwise here."""


_KINDS = {**get_type_hints(PlannerConfig), **get_type_hints(DeploymentConfig)}
_LITERALS: Final = {
    name: [str(word) for word in get_args(kind)]
    for name, kind in _KINDS.items()
    if get_origin(kind) is Literal
}
_TAGS: Final = [str(kind.__struct_config__.tag) for kind in get_args(Connector)]
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
"""msgspec's names of what a YAML file holds."""


class ConfigError(UsageError):
    """One line that says which setting is wrong and what was expected."""


def read_config(path: str, profile: Profile = "ours") -> PlannerConfig:
    """Raises ConfigError."""
    try:
        document = read_document(path)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        return config_of(document, profile)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def config_of(document: object, profile: Profile = "ours") -> PlannerConfig:
    """From what a YAML file holds. Raises ConfigError."""
    try:
        config = msgspec.convert(_with_defaults(document, profile), PlannerConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(_explained(str(error))) from None
    for fault in faults(config):
        raise ConfigError(fault)
    deployments = tuple(map(_completed, config.deployments))
    return msgspec.structs.replace(config, deployments=deployments)


def _with_defaults(document: object, profile: Profile) -> object:
    """The document's values count where nobody has given one."""
    if profile == "ours" or not isinstance(document, dict):
        return document
    deployments = document.get("deployments")
    if not isinstance(deployments, list):
        return document
    filled = [{**DOCUMENT, **each} if isinstance(each, dict) else each for each in deployments]
    return {**document, "deployments": filled}


def _completed(given: DeploymentConfig) -> DeploymentConfig:
    """With what follows from other settings: easy modes, and the interval of ticks."""
    if given.optimization_target != "sla":
        given = msgspec.structs.replace(
            given, enable_load_scaling=True, enable_throughput_scaling=False
        )
    if given.scale_interval_seconds is None:
        common = math.gcd(*(round(each * 1000) for each in intervals_of(given)))
        given = msgspec.structs.replace(given, scale_interval_seconds=common / 1000)
    return given


def _explained(fault: str) -> str:
    """msgspec's words behind the place, and for a field that nobody knows the one that is meant."""
    begin = "Object contains unknown field `"
    if not fault.startswith(begin):
        return _placed(" ".join(fault.split()))
    name = fault[len(begin) :].split("`")[0]
    known = DeploymentConfig.__struct_fields__ + PlannerConfig.__struct_fields__
    meant = _OF_REFERENCE.get(name) or nearest(name, known)
    text = f"unknown setting `{shown(name)}`"
    if " - at " in fault:
        text += f" at {fault.split(' - at ')[1]}"
    return text if meant is None else f"{text}; did you mean `{meant}`?"


def _placed(fault: str) -> str:
    """Return the fault with its place first, and the values that there are."""
    text, _, place = fault.partition(" - at `$.")
    place = place.rstrip("`")
    for name, words in _TYPES.items():
        text = text.replace(f"`{name}`", words)
    known = _TAGS if place.endswith("connector.kind") else _LITERALS.get(place.rpartition(".")[2])
    if known and (got := _GOT.fullmatch(text)):
        text = f"expected one of {', '.join(known)}, got `{shown(got[1])}`"
    return f"{place}: {text[:1].lower()}{text[1:]}" if place else text
