"""What a setting is."""

from collections.abc import Callable
from typing import Any, NamedTuple

ENVIRONMENT_PREFIX = "SELECT_SERVICE_"


class Setting(NamedTuple):
    """`flag` is None for what only the environment can set; the first variable set counts."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    help: str
    flag: str | None = None
    variables: tuple[str, ...] = ()

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
) -> Setting:
    """What the command line takes, and the environment under the same name.

    also: further variables, of the reference
    """
    word = flag.removeprefix("--").replace("-", "_")
    variable = ENVIRONMENT_PREFIX + word.upper()
    return Setting(name or word, default, parse, help_text, flag, (variable, *also))
