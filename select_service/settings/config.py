"""The configuration: the only reader of the command line and of the environment.

The table of all settings is in `table`; `--help`, `GET /config` and the documentation follow from
it.  A value that makes no sense stops the start: a fleet must not run on a typo.  A variable that
nobody reads may be one, so it is told.
"""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple, NoReturn

from select_service.settings import values as read
from select_service.settings.table import (
    ENVIRONMENT_PREFIX,
    GROUPS,
    SETTINGS,
    WITHOUT_EFFECT,
    Setting,
)

UNKNOWN_MAX = 32
"""Variables that are told of."""
_OURS = re.compile(r"(SELECT_SERVICE|DYN_ROUTER)_(\w+)")
_OF_KUBERNETES = re.compile(r"SELECT_SERVICE_(SERVICE_(HOST|PORT\w*)|PORT_\d+_\w+)")
"""What a pod finds in its environment beside a service of the name `select-service`."""


class ConfigError(Exception):
    """One line that says which setting is wrong and what was expected."""


class Unusable(Exception):
    """One line about a setting that makes sense, but not on this machine."""


class Value(NamedTuple):
    """A setting's value and where it came from."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting of the process by name, with its origin."""

    values: Mapping[str, Value]
    without_effect: tuple[str, ...]
    unknown: Mapping[str, str | None]
    """Variables that look like ours and are not -> the most similar one of ours."""

    def __getitem__(self, name: str) -> Any:
        return self.values[name].value

    def effective(self) -> dict[str, dict[str, Any]]:
        """What GET /config and the log show."""
        return {setting.name: self.values[setting.name]._asdict() for setting in SETTINGS}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parser() -> argparse.ArgumentParser:
    """The command line; values stay texts and are read like those of the environment."""
    result = _Parser(
        prog="select-service",
        description="KV-cache-aware worker selection and load accounting for LLM inference fleets. "
        "`select-service compile --help`: compile the kernels ahead of the first start.",
        epilog="Every flag can be given in the environment as "
        f"{ENVIRONMENT_PREFIX}<FLAG>, for example {ENVIRONMENT_PREFIX}PORT=8092; the command line "
        "wins, an empty variable counts as not set.",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--version", action="store_true", help="print the version and exit")
    for title, settings in GROUPS.items():
        variables = [line for each in settings if not each.flag for line in _variable_help(each)]
        text = "Only in the environment:\n" + "\n".join(variables) if variables else None
        group = result.add_argument_group(title, text)
        for setting in settings:
            if setting.flag:
                also = f" [{', '.join(setting.variables[1:])}]" if setting.variables[1:] else ""
                text = (setting.help + _default_of(setting) + also).replace("%", "%%")
                group.add_argument(setting.flag, dest=setting.name, metavar="VALUE", help=text)
    return result


def _variable_help(setting: Setting) -> list[str]:
    return [f"  {setting.variables[0]}", f"      {setting.help}{_default_of(setting)}"]


def _default_of(setting: Setting) -> str:
    return "" if setting.default is None else f" (default {_shown(setting.default)})"


def _shown(default: Any) -> str:
    return ",".join(default) if isinstance(default, tuple) else str(default)


def load(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Config:
    """Raises ConfigError for the first setting that makes no sense."""
    values = {s.name: _value(s, getattr(arguments, s.name, None), environment) for s in SETTINGS}
    weight = values["overlap_score_weight"]
    if weight.value is not None:  # an old variable that stands for a newer one, or for two
        values["prefill_load_scale"] = weight
        if weight.value == 0.0:
            values["overlap_score_credit"] = weight
    if values["replica_sync_peers"].value and values["replica_sync_port"].value is None:
        raise ConfigError("--replica-sync-peers requires --replica-sync-port")
    without_effect = tuple(name for name in WITHOUT_EFFECT if environment.get(name))
    return Config(values, without_effect, _unknown(environment))


def _unknown(environment: Mapping[str, str]) -> dict[str, str | None]:
    known = {variable for setting in SETTINGS for variable in setting.variables}
    others = (
        name
        for name, text in environment.items()
        if text and _OURS.fullmatch(name) and not _OF_KUBERNETES.fullmatch(name)
    )
    unknown = sorted(set(others) - known - set(WITHOUT_EFFECT))[:UNKNOWN_MAX]
    return {name: _nearest(name, known) for name in unknown}


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ends most alike: the beginning is the same for many."""
    ends = {_OURS.sub(r"\2", each): each for each in sorted(known)}
    found = get_close_matches(_OURS.sub(r"\2", name), ends, 1)
    return ends[found[0]] if found else None


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> Config:
    """Raises ConfigError."""
    return load(parser().parse_args(argv), environment)


def _value(setting: Setting, given: str | None, environment: Mapping[str, str]) -> Value:
    if given is not None:
        return Value(_parsed(setting, str(setting.flag), given), "command line")
    for variable in setting.variables:
        if text := environment.get(variable):
            return Value(_parsed(setting, variable, text), f"environment {variable}")
    return Value(setting.default, "default")


def _parsed(setting: Setting, source: str, text: str) -> Any:
    try:
        return setting.parse(text)
    except read.PartError as error:
        raise ConfigError(f"{source}: {error}") from None
    except ValueError as expected:
        shown = repr(text[: read.SHOWN_CHARS_MAX])[1:-1]
        raise ConfigError(f"{source}: expected {expected}, got `{shown}`") from None
