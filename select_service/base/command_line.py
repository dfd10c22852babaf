"""Command line parsing shared by all commands: uniform help and error messages.

Uses the standard library only: `scripts/demo` parses its command line before anything is installed.
"""

import argparse
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from select_service.base.suggestions import nearest_name, printable_name

T = TypeVar("T")
DIGITS_MAX = 20
NUMBER = re.compile(r"[0-9.eE+-]+")
COLUMNS = 80
"""Width of the text before the options."""
_REQUIRED = "the following arguments are required: "
"""Start of the one argparse message that is reported as plain text."""
_NO_VALUE = ("expected one argument", "expected at least one argument")
_TAKES_NONE = "ignored explicit argument "


class UsageError(Exception):
    """One-line error about something a user has to change; the exit status is 2."""


class CommandParser(argparse.ArgumentParser):
    """Argument parser with a help that begins with the purpose of the command and examples.

    examples: descriptions by command line
    words: usage after the name of the command
    commands: descriptions of subcommands by name
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
        parts = [textwrap.fill(description, COLUMNS), "Examples:\n" + _format_table(examples)]
        if self._commands:
            table = _format_table(self._commands)
            parts.append("Commands, each with a --help of its own:\n" + table)
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
        """Add an argument; its flag is suggested for similar unknown flags."""
        self.flags += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **options)

    def add_value(
        self,
        flag: str,
        parse: Callable[[str], object],
        metavar: str,
        meaning: str,
        default: Any = None,
    ) -> None:
        """Add an option with a value; its help ends with the default, if that is a number or word.

        parse: parser of the value, see `argument_type`
        """
        if isinstance(default, int | float | str):
            shown = default if isinstance(default, str) else f"{default:g}"
            meaning += f" (default {shown})"
        kind = argument_type(parse)
        self.add_argument(flag, type=kind, default=default, metavar=metavar, help=meaning)

    def format_help(self) -> str:
        """Return the purpose and examples, then the help of argparse."""
        return f"{self._lead}\n\n{super().format_help()}"

    def parse_arguments(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the parsed arguments.  Raises UsageError."""
        try:
            found, unknown = self.parse_known_args(argv)
        except argparse.ArgumentError as error:
            raise UsageError(_argument_error_text(error)) from None
        if unknown:
            raise UsageError(self._not_an_argument(unknown[0].partition("=")[0]))
        return found

    def error(self, message: str) -> NoReturn:
        """Raise UsageError instead of ending the process."""
        if message.startswith(_REQUIRED):
            # exit_on_error=False does not cover missing arguments: argparse reports them by `error`
            # alone.
            names = message.removeprefix(_REQUIRED)
            verb = "are" if "," in names else "is"
            message = f"{names} {verb} missing, see {self.prog} --help"
        raise UsageError(message)

    def _not_an_argument(self, word: str) -> str:
        if word in self._commands:
            return f"`{word}` must be the first word of the command line"
        known = self.flags if word.startswith("-") else [*self._commands, *self.flags]
        meant = nearest_name(word, known, lambda each: each.strip("-").lower())
        proposal = f"; see {self.prog} --help" if meant is None else f": did you mean `{meant}`?"
        return f"unknown argument `{printable_name(word)}`{proposal}"


def _format_table(rows: Mapping[str, str]) -> str:
    width = max(map(len, rows))
    return "\n".join(f"  {left:{width}}  {right}".rstrip() for left, right in rows.items())


def _argument_error_text(error: argparse.ArgumentError) -> str:
    message = "a value is missing, see --help" if error.message in _NO_VALUE else error.message
    name = (error.argument_name or "").rpartition("/")[2]
    if message.startswith(_TAKES_NONE):
        return f"{name} takes no value"
    return f"{name}: {message}" if name else message


# Parsers of values.


def argument_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a `type` for argparse from a parser; its ValueError contains the expected form."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as expected:
            raise argparse.ArgumentTypeError(
                f"expected {expected}, got `{printable_name(text)}`"
            ) from None

    return convert


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers in a range."""

    def parse(text: str) -> int:
        plain = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
        if not plain or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def finite_number(low: float, high: float) -> Callable[[str], float]:
    """Return a parser of finite numbers in a range."""

    def parse(text: str) -> float:
        try:
            value = float(text) if NUMBER.fullmatch(text) else math.nan
        except ValueError:
            value = math.nan
        if not low <= value <= high or math.isinf(value):
            upper = "" if math.isinf(high) else f" to {high:.12g}"
            raise ValueError(f"a number from {low:g}{upper or ' upwards'}")
        return value

    return parse


def positive_number(text: str) -> float:
    """Return a positive number.  Raises ValueError."""
    with suppress(ValueError):
        if value := finite_number(0, math.inf)(text):
            return value
    raise ValueError("a number above 0")


@dataclass(frozen=True, slots=True)
class WordParser:
    """Parser of one of several words."""

    words: tuple[str, ...]

    def __call__(self, text: str) -> str:
        if text.lower() not in self.words:
            raise ValueError(("one of " if len(self.words) > 1 else "") + ", ".join(self.words))
        return text.lower()

    @property
    def metavar(self) -> str:
        """Metavar of the words."""
        return "{" + ",".join(self.words) + "}"


def one_of_words(*words: str) -> WordParser:
    return WordParser(words)


# Output.


def print_error(text: str) -> None:
    """Print a one-line error of the command `select-service`."""
    print(f"select-service: error: {text}", file=sys.stderr)


@contextmanager
def exit_quietly_on_closed_output() -> Iterator[None]:
    """End the process silently with status 1 when the reader of its output is gone."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which would print a second BrokenPipeError.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        raise SystemExit(1) from None


# Files.


def file_error_text(path: Path | str, error: OSError, done: str = "read") -> str:
    """Return the message for a file error.

    done: failed operation, such as "read"
    """
    return f"`{path}` cannot be {done}: {error.strerror or error}"
