"""Way to a plugin: interface, request and reading of answers."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.planner.core.plugin_contracts import (
    ANSWER_TYPES,
    InvalidAnswer,
    PluginAnswer,
)
from select_service.planner.core.stages import TARGETS_MAX, Stage

ANSWER_BYTES_MAX = 1 << 16
"""Limit of an encoded answer."""


class PluginError(Exception):
    """Error of a call: no answer, or an exception of the plugin."""


class PluginBusy(PluginError):
    """Error of a call while an earlier one still runs."""


class StageRequest(NamedTuple):
    """Request to a plugin. body: the context as JSON"""

    deployment: str
    stage: Stage
    body: bytes


class PluginPort(Protocol):
    """Way to a plugin: in this process, over HTTP or over gRPC. Belongs to one event loop."""

    async def call_stage(self, request: StageRequest) -> PluginAnswer | None:
        """Return the answer; None means no opinion. The caller limits the time.

        Raises PluginError, InvalidAnswer.
        """
        ...

    async def send_heartbeat(self) -> None:
        """Check that the plugin is alive. Raises PluginError."""
        ...

    async def close(self) -> None: ...


def decode_answer(stage: Stage, text: bytes) -> PluginAnswer | None:
    """Decode a JSON answer; an empty one is no opinion. Raises InvalidAnswer."""
    if len(text) > ANSWER_BYTES_MAX:
        raise InvalidAnswer(f"{len(text)} bytes, at most {ANSWER_BYTES_MAX} are allowed")
    if not text.strip():
        return None
    try:
        return msgspec.json.decode(text, type=ANSWER_TYPES[stage] | None)
    except DECODE_ERRORS as error:
        raise InvalidAnswer(str(error)) from None


def convert_answer(stage: Stage, answer: object) -> PluginAnswer | None:
    """Convert an answer of objects: a struct, a mapping or None. Raises InvalidAnswer."""
    plain = _shallow(answer)
    if isinstance(plain, Mapping) and "targets" in plain:
        targets = plain["targets"]
        # Checked before the entries are touched: a list of a million takes seconds to convert.
        if not isinstance(targets, list | tuple) or len(targets) > TARGETS_MAX:
            raise InvalidAnswer(f"targets: expected a list of at most {TARGETS_MAX}")
        plain = {**plain, "targets": [_shallow(target) for target in targets]}
    try:
        found: PluginAnswer | None = msgspec.convert(plain, ANSWER_TYPES[stage] | None)
        # Strings of objects may be none of Unicode, which no status could show.
        _ = found is not None and found.reason.encode()
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise InvalidAnswer(str(error)) from None
    return found


def _shallow(value: object) -> object:
    """Return a struct as a mapping: structs of a plugin were never validated."""
    return msgspec.structs.asdict(value) if isinstance(value, Struct) else value
