"""Log formatting: text for people, JSON for collectors; every record of the process passes here.

Convention: a constant message, and variable data as fields.  The call

    log.info("worker registered", extra={"fields": {"worker_id": 7, "tenant_id": "prod"}})

writes

    2026-01-01T00:00:00.000Z INFO select_service.api worker registered worker_id=7 tenant_id=prod

or, as JSON, one object per line with `time`, `level`, `logger`, `message`, then the fields, then
`exception` if there is one.  A field may have any value; values unknown to JSON are shown as text.
No value can start a new line or send control codes to a terminal.
"""

import logging
import re
import sys
from array import array
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

OWN_PACKAGES = ("select_service", "indexer")
"""Packages that use the chosen level; other packages log warnings only."""

_HANDLER = "select_service"
_OWN_KEYS = frozenset({"time", "level", "logger", "message", "exception"})
_PLAIN = re.compile(r"[A-Za-z0-9_.:/@+,*%()\[\]-]+")
_TERMINAL_CODES = re.compile("[\x7f-\x9f\u2028\u2029]")


shows_debug = array("q", [0])
"""[0]: 1 if debug lines are shown, for kernels; the array has a fixed address."""


def configure_logging(
    level: str, form: Literal["text", "json"], stream: TextIO | None = None
) -> None:
    """Send all log lines of the process to `stream`, by default standard error.

    level: debug, info, warning or error
    A later call replaces the configuration.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.set_name(_HANDLER)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    # Only the own handler is replaced: test runners and embedding programs keep theirs.
    for old in [h for h in root.handlers if h.get_name() == _HANDLER]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    _adopt_uvicorn()
    set_log_level(level)
    logging.captureWarnings(True)


def set_log_level(level: str) -> None:
    """Show lines of this level and above from now on.

    level: debug, info, warning or error.  uvicorn logs its start and stop at INFO, which repeats
    the lines of this service, and is therefore shown for debugging only.
    """
    for package in OWN_PACKAGES:
        logging.getLogger(package).setLevel(level.upper())
    shows_debug[0] = level == "debug"
    logging.getLogger("uvicorn").setLevel(logging.INFO if level == "debug" else logging.WARNING)


def current_log_level() -> str:
    """Return the current level, as in `set_log_level`."""
    return logging.getLevelName(logging.getLogger(OWN_PACKAGES[0]).getEffectiveLevel()).lower()


def _adopt_uvicorn() -> None:
    """Let uvicorn's loggers use the root handler, at the level of their common parent."""
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


class TextLines(logging.Formatter):
    """Formatter of `time LEVEL logger message key=value ...`, with a traceback on indented
    lines.
    """

    def format(self, record: logging.LogRecord) -> str:
        head = f"{_record_time(record)} {record.levelname} {record.name}"
        fields = _record_fields(record).items()
        pairs = [f"{_format_word(name)}={_format_word(value)}" for name, value in fields]
        line = " ".join((head, _escape_unprintable(record.getMessage()), *pairs))
        trace = _record_traceback(self, record)
        if trace:
            line += "".join(f"\n    {_escape_unprintable(part)}" for part in trace.splitlines())
        return line


class JsonLines(logging.Formatter):
    """Formatter of one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        body: dict[str, Any] = {
            "time": _record_time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in _record_fields(record).items():
            body[f"{name}_" if name in _OWN_KEYS else name] = value
        trace = _record_traceback(self, record)
        if trace:
            body["exception"] = trace
        # JSON escapes control codes below 0x20 only; terminals and line splitters also act on
        # these.
        return _TERMINAL_CODES.sub(lambda m: f"\\u{ord(m[0]):04x}", _encode_json(body))


def _record_fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return {str(name): value for name, value in fields.items()} if fields else {}


def _record_time(record: logging.LogRecord) -> str:
    """Return the time in RFC 3339 format, UTC, with milliseconds."""
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _record_traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return formatter.formatException(record.exc_info)


def _format_word(value: Any) -> str:
    """Return a value as one word: bare if unambiguous, else quoted."""
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return _escape_unprintable(_encode_json(value))


def _escape_unprintable(text: str) -> str:
    return text if text.isprintable() else "".join(map(_escape_char, text))


def _escape_char(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def _encode_json(value: Any) -> str:
    """Return compact JSON; unsupported values become text, since logging must never fail."""
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (OverflowError, TypeError, ValueError, RecursionError):
        pass  # an integer over 64 bits, a non-text key, a lone surrogate, a cycle
    if isinstance(value, dict):
        members = (f"{_encode_json(str(k))}:{_encode_json(v)}" for k, v in value.items())
        return "{" + ",".join(members) + "}"
    return msgspec.json.encode(ascii(value)).decode()
