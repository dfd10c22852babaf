"""Definition of a setting."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from select_service.base.command_line import WordParser
from select_service.config import value_parsers as read

ENVIRONMENT_PREFIX = "SELECT_SERVICE_"
KINDS = {
    **dict.fromkeys(("decisions", "failures", "requests", "retries", "threads"), "N"),
    "host": "ADDRESS",
    "secs": "SECONDS",
}
"""Metavar by the last word of a flag, where it differs from that word."""


class ServiceSetting(NamedTuple):
    """Setting; without `flag`, only the environment sets it.

    The first variable that is set wins.
    """

    name: str
    default: Any
    parse: Callable[[str], Any]
    help: str
    flag: str | None = None
    variables: tuple[str, ...] = ()
    kind: str = ""
    """Metavar of the value in the help."""

    def with_variables(self, *others: str) -> "ServiceSetting":
        """Return the setting with further variables, known from Dynamo."""
        return self._replace(variables=(*self.variables, *others))

    def flag_and_variable(self) -> dict[str, str]:
        """Return the flag, if there is one, and the first variable."""
        flag = {"flag": self.flag} if self.flag else {}
        return {**flag, "variable": self.variables[0]}


def flag_setting(
    flag: str,
    default: Any,
    parse: Callable[[str], Any],
    help_text: str,
    name: str = "",
    *,
    kind: str = "",
) -> ServiceSetting:
    """Return a setting of the command line, with an environment variable of the same name.

    name: name, if it does not follow from the flag
    kind: metavar, if it follows neither from `parse` nor from the last word of the flag
    """
    word = flag.removeprefix("--").replace("-", "_")
    variable = ENVIRONMENT_PREFIX + word.upper()
    # Names have units in the form of the code, flags in the form of the command line.
    name = name or re.sub("_secs$", "_s", word)
    kind = kind or _kind_of(word, parse)
    return ServiceSetting(name, default, parse, help_text, flag, (variable,), kind)


def path_setting(flag: str, help_text: str) -> ServiceSetting:
    """Return a setting with the path of a file; None by default."""
    return flag_setting(flag, None, read.non_empty_text, help_text, kind="FILE")


def switch_setting(flag: str, help_text: str) -> ServiceSetting:
    """Return a setting that is off by default."""
    return flag_setting(flag, False, read.true_or_false, help_text)


def dynamo_setting(
    name: str, default: Any, parse: Callable[[str], Any], help_text: str
) -> ServiceSetting:
    """Return a setting that only Dynamo's variable of the same name sets."""
    variables = (f"DYN_ROUTER_{name.upper()}",)
    return ServiceSetting(name, default, parse, help_text, variables=variables)


def _kind_of(word: str, parse: Callable[[str], Any]) -> str:
    if parse is read.true_or_false:
        return "{true,false}"
    if isinstance(parse, WordParser):
        return parse.metavar
    last = word.rpartition("_")[2]
    return KINDS.get(last, last.upper())
