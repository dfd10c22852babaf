"""Lines of the decision log: JSON with the input, all stages and the result of each tick.

A line holds the complete input of the core, so a log can be run again, with the same settings or
with others. The first line of a file, and a line after each change, holds the settings.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import Role, TickInput

LINE_BYTES_MAX = 64 << 20


class DecisionLogError(Exception):
    """Error of a file that is no decision log; the text names the line."""


class SettingsLine(Struct, frozen=True, kw_only=True, tag="settings", tag_field="line"):
    """Settings from here on.

    started_s: start of the schedule of ticks; another value means a restart without earlier state
    """

    deployment: str
    at_s: float
    settings: DeploymentSettings
    started_s: float


class TickLine(Struct, frozen=True, kw_only=True, tag="tick", tag_field="line", omit_defaults=True):
    """Tick of a deployment.

    diagnostics: diagnostics as encoded by the process that wrote the log
    """

    deployment: str
    tick: TickInput
    scale_to: Mapping[Role, int] | None = None
    diagnostics: Raw = Raw(b"null")
    applied: Raw = Raw(b"null")


LogLine = SettingsLine | TickLine
# Deterministic order: the replay compares encoded diagnostics byte by byte.
_encoder = msgspec.json.Encoder(order="deterministic")
_decoder: msgspec.json.Decoder[LogLine] = msgspec.json.Decoder(LogLine)


def encode_line(line: LogLine) -> bytes:
    """Encode a line without its end. Equal lines have equal bytes."""
    return _encoder.encode(line)


def read_lines(path: Path) -> Iterator[LogLine]:
    """Read the lines of a log.

    An unfinished line of a killed process is skipped; the log starts anew after it.
    Raises DecisionLogError for a malformed line, OSError if the file cannot be read.
    """
    # A killed process leaves half a line, and its successor starts with a settings line. Any other
    # malformed line means that the file is not a decision log.
    number, torn = 0, None
    with path.open("rb") as file:
        while (text := file.readline(LINE_BYTES_MAX)).endswith(b"\n"):  # an unfinished last line
            number += 1
            try:
                line = _decoder.decode(text)
            except DECODE_ERRORS as error:
                if torn is not None:
                    break
                # The usual mistake is the log of a selector, with another first line.
                hint = "" if number > 1 else "; give the log of a planner, not of a selector"
                torn = DecisionLogError(f"{path}, line {number}: {error}{hint}")
                continue
            if torn is not None and not isinstance(line, SettingsLine):
                break
            torn = None
            yield line
    if torn is not None:
        raise torn
