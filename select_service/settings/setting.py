"""What a setting is."""

from collections.abc import Callable
from typing import Any, NamedTuple

from select_service.command_line import Choice
from select_service.settings import values as read

ENVIRONMENT_PREFIX = "SELECT_SERVICE_"
KINDS = {
    **dict.fromkeys(("ca", "cert", "config", "file", "key", "log", "path"), "FILE"),
    **dict.fromkeys(("decisions", "failures", "loops", "requests", "retries", "threads"), "N"),
    "host": "ADDRESS",
    "secs": "SECONDS",
}
"""Kinds of values by the last word of a flag, where they are not that word."""


class Setting(NamedTuple):
    """`flag` is None for what only the environment can set; the first variable set counts."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    help: str
    flag: str | None = None
    variables: tuple[str, ...] = ()
    kind: str = ""
    """What a value of the flag is, as help shows it."""

    def handles(self) -> dict[str, str]:
        """By what a user sets it: `flag`, when there is one, and the first `variable`."""
        flag = {"flag": self.flag} if self.flag else {}
        return {**flag, "variable": self.variables[0]}


def cli(
    flag: str,
    default: Any,
    parse: Callable[[str], Any],
    help_text: str,
    name: str = "",
    *,
    also: tuple[str, ...] = (),
    kind: str = "",
) -> Setting:
    """What the command line takes, and the environment under the same name.

    also: further variables, of the reference
    kind: what a value is, as help shows it; where it follows neither from `parse` nor from the
    last word of the flag
    """
    word = flag.removeprefix("--").replace("-", "_")
    variable = ENVIRONMENT_PREFIX + word.upper()
    kind = kind or _kind_of(word, parse)
    return Setting(name or word, default, parse, help_text, flag, (variable, *also), kind)


def _kind_of(word: str, parse: Callable[[str], Any]) -> str:
    if parse is read.flag:
        return "{true,false}"
    if isinstance(parse, Choice):
        return parse.kind
    last = word.rpartition("_")[2]
    return KINDS.get(last, last.upper())
