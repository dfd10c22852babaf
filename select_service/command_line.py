"""What all commands share: help of one shape, and one style for what is wrong with an argument.

Standard library only: `scripts/demo` judges its command line before anything is installed.
"""

import argparse
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from select_service.spelling import nearest, shown

T = TypeVar("T")
DIGITS_MAX = 20
NUMBER = re.compile(r"[0-9.eE+-]+")
COLUMNS = 80
"""Width of what stands before the options."""
_REQUIRED = "the following arguments are required: "
"""How argparse begins the one fault that it reports as a text alone."""
_OF_ARGPARSE = {
    "expected one argument": "a value is missing, see --help",
    "expected at least one argument": "a value is missing, see --help",
}
_TAKES_NONE = "ignored explicit argument "


class UsageError(Exception):
    """One line about what a user has to change; the exit status is 2."""


class CommandParser(argparse.ArgumentParser):
    """A parser whose help begins with the purpose of the command and with examples.

    examples: meanings by command
    words: what the usage shows behind the name of the command
    commands: first words that name another command
    """

    def __init__(
        self,
        prog: str,
        description: str,
        examples: Mapping[str, str],
        words: str = "[OPTION ...]",
        *,
        commands: Mapping[str, str] | None = None,
        epilog: str | None = None,
    ) -> None:
        self.flags: list[str] = []
        self._commands = commands or {}
        parts = [textwrap.fill(description, COLUMNS), "Examples:\n" + _table(examples)]
        if self._commands:
            parts.append("Commands, each with a --help of its own:\n" + _table(self._commands))
        self._lead = "\n\n".join(parts)
        super().__init__(
            prog=prog,
            usage=f"{prog} {words}".replace("%", "%%"),
            epilog=None if epilog is None else epilog.replace("%", "%%"),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            exit_on_error=False,
        )

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """Add an argument, whose flag is proposed where somebody wrote one like it."""
        self.flags += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **options)

    def format_help(self) -> str:
        """Return the purpose and examples, then what argparse makes."""
        return f"{self._lead}\n\n{super().format_help()}"

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the arguments.  Raises UsageError."""
        try:
            found, unknown = self.parse_known_args(argv)
        except argparse.ArgumentError as error:
            raise UsageError(_sentence(error)) from None
        if unknown:
            raise UsageError(self._not_an_argument(unknown[0].partition("=")[0]))
        return found

    def error(self, message: str) -> NoReturn:
        """Raise UsageError instead of ending the process."""
        if message.startswith(_REQUIRED):
            names = message.removeprefix(_REQUIRED)
            verb = "are" if "," in names else "is"
            message = f"{names} {verb} missing, see {self.prog} --help"
        raise UsageError(message)

    def _not_an_argument(self, word: str) -> str:
        if word in self._commands:
            return f"`{word}` must be the first word of the command line"
        known = self.flags if word.startswith("-") else [*self._commands, *self.flags]
        meant = nearest(word, known, lambda each: each.strip("-").lower())
        proposal = f"; see {self.prog} --help" if meant is None else f": did you mean `{meant}`?"
        return f"unknown argument `{shown(word)}`{proposal}"


def _table(rows: Mapping[str, str]) -> str:
    width = max(map(len, rows))
    return "\n".join(f"  {left:{width}}  {right}".rstrip() for left, right in rows.items())


def _sentence(error: argparse.ArgumentError) -> str:
    message = _OF_ARGPARSE.get(error.message, error.message)
    name = (error.argument_name or "").rpartition("/")[2]
    if message.startswith(_TAKES_NONE):
        return f"{name} takes no value"
    return f"{name}: {message}" if name else message


# --- values


def typed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a `type` for argparse out of a reader whose ValueError says what is expected."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as expected:
            raise argparse.ArgumentTypeError(f"expected {expected}, got `{shown(text)}`") from None

    return convert


def whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        plain = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
        if not plain or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text) if NUMBER.fullmatch(text) else math.nan
        except ValueError:
            value = math.nan
        if not low <= value <= high or math.isinf(value):
            upper = "" if math.isinf(high) else f" to {high:g}"
            raise ValueError(f"a number from {low:g}{upper or ' upwards'}")
        return value

    return parse


def above_zero(text: str) -> float:
    """Return a number.  Raises ValueError."""
    try:
        value = number(0, math.inf)(text)
    except ValueError:
        value = 0.0
    if not value:
        raise ValueError("a number above 0")
    return value


@dataclass(frozen=True, slots=True)
class Choice:
    """A reader of one of some words."""

    words: tuple[str, ...]

    def __call__(self, text: str) -> str:
        if text.lower() not in self.words:
            raise ValueError(("one of " if len(self.words) > 1 else "") + ", ".join(self.words))
        return text.lower()

    @property
    def kind(self) -> str:
        """As help shows it."""
        return "{" + ",".join(self.words) + "}"


def choice(*words: str) -> Choice:
    return Choice(words)


# --- output


@contextmanager
def leaving_with_reader() -> Iterator[None]:
    """End the process with status 1 and without a word when nobody reads its output any more."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        raise SystemExit(1) from None


# --- files


def file_fault(path: Path | str, error: OSError, done: str = "read") -> str:
    """Return what is wrong with a file, with its name, in words.

    done: what could not be done with it
    """
    return f"`{path}` cannot be {done}: {error.strerror or error}"
