"""One line of JSON for each tick: what went in, what every stage said, what came out.

A line holds all that the core was told, so a log can be run again, with the same settings or with
others. The first line of a file, and one after each change, says which settings counts.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from select_service.planner.core.inputs import Role, TickInput
from select_service.planner.core.settings import Settings
from select_service.unreadable_json import UNREADABLE

LINE_BYTES_MAX = 64 << 20


class LogError(Exception):
    """The file is no decision log; the text names the line."""


class SettingsLine(Struct, frozen=True, kw_only=True, tag="settings", tag_field="line"):
    """From here on.

    started_s: where the schedule of ticks began; another one says that nothing was known any more
    """

    deployment: str
    at_s: float
    settings: Settings
    started_s: float


class TickLine(Struct, frozen=True, kw_only=True, tag="tick", tag_field="line", omit_defaults=True):
    """diagnostics: as the process that wrote it had them, in its own form."""

    deployment: str
    tick: TickInput
    scale_to: Mapping[Role, int] | None = None
    diagnostics: Raw = Raw(b"null")
    applied: Raw = Raw(b"null")


Line = SettingsLine | TickLine
_encoder = msgspec.json.Encoder(order="deterministic")
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def encoded(line: Line) -> bytes:
    """Without its end. Equal lines have equal bytes."""
    return _encoder.encode(line)


def read_lines(path: Path) -> Iterator[Line]:
    """Without a line that a killed process has left unfinished: the next one begins anew.

    Raises LogError for a malformed line, OSError when the file cannot be read.
    """
    number, torn = 0, None
    with path.open("rb") as file:
        while (text := file.readline(LINE_BYTES_MAX)).endswith(b"\n"):  # else it is being written
            number += 1
            try:
                line = _decoder.decode(text)
            except UNREADABLE as error:
                if torn is not None:
                    break
                torn = LogError(f"{path}, line {number}: {error}")
                continue
            if torn is not None and not isinstance(line, SettingsLine):
                break
            torn = None
            yield line
    if torn is not None:
        raise torn
