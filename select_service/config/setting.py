"""Definition of a setting."""

from collections.abc import Callable
from typing import Any, NamedTuple

from select_service.base.command_line import WordParser
from select_service.config import value_parsers as read

ENVIRONMENT_PREFIX = "SELECT_SERVICE_"
KINDS = {
    **dict.fromkeys(("ca", "cert", "config", "file", "key", "log", "path"), "FILE"),
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

    kind: metavar, if it follows neither from `parse` nor from the last word of the flag
    """
    word = flag.removeprefix("--").replace("-", "_")
    variable = ENVIRONMENT_PREFIX + word.upper()
    kind = kind or _kind_of(word, parse)
    return ServiceSetting(name or word, default, parse, help_text, flag, (variable,), kind)


def _kind_of(word: str, parse: Callable[[str], Any]) -> str:
    if parse is read.true_or_false:
        return "{true,false}"
    if isinstance(parse, WordParser):
        return parse.metavar
    last = word.rpartition("_")[2]
    return KINDS.get(last, last.upper())
