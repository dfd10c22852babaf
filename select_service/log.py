"""Log lines: text for people, JSON for collectors; every record of the process passes here.

Convention: a constant message, and what varies as fields.  A caller writes

    log.info("worker registered", extra={"fields": {"worker_id": 7, "tenant_id": "prod"}})

and reads

    2026-01-01T00:00:00.000Z INFO select_service.api worker registered worker_id=7 tenant_id=prod

or, as JSON, one object per line with `time`, `level`, `logger`, `message`, then the fields, then
`exception` when there is one.  A field may hold anything; what JSON does not know is shown as text.
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
"""Loggers that follow the chosen level; of other packages only warnings are shown."""

_HANDLER = "select_service"
_OWN_KEYS = frozenset({"time", "level", "logger", "message", "exception"})
_PLAIN = re.compile(r"[A-Za-z0-9_.:/@+,*%()\[\]-]+")
_TERMINAL_CODES = re.compile("[\x7f-\x9f\u2028\u2029]")


shows_debug = array("q", [0])
"""[0]: are lines of level debug shown?  For kernels; it stays where it is."""


def configure(level: str, form: Literal["text", "json"], stream: TextIO | None = None) -> None:
    """Send every log line of the process to `stream`; standard error when none is given.

    level: debug, info, warning or error.  May be called again; the last call counts.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.set_name(_HANDLER)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    for old in [h for h in root.handlers if h.get_name() == _HANDLER]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    _adopt_uvicorn()
    set_level(level)
    logging.captureWarnings(True)


def set_level(level: str) -> None:
    """From now on show lines of this level and above.

    level: debug, info, warning or error.  uvicorn reports its own start and stop at INFO, which
    repeats our lines: shown only for debugging.
    """
    for package in OWN_PACKAGES:
        logging.getLogger(package).setLevel(level.upper())
    shows_debug[0] = level == "debug"
    logging.getLogger("uvicorn").setLevel(logging.INFO if level == "debug" else logging.WARNING)


def current_level() -> str:
    """The level that counts now, as in `set_level`."""
    return logging.getLevelName(logging.getLogger(OWN_PACKAGES[0]).getEffectiveLevel()).lower()


def _adopt_uvicorn() -> None:
    """Let uvicorn's loggers pass through the root handler, at the level of their common parent."""
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


class TextLines(logging.Formatter):
    """`time LEVEL logger message key=value ...`; a traceback follows on indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        head = (
            _time(record),
            record.levelname,
            record.name,
            _printable(record.getMessage()),
        )
        pairs = [f"{_word(name)}={_word(value)}" for name, value in _fields(record).items()]
        line = " ".join((*head, *pairs))
        trace = _traceback(self, record)
        if trace:
            line += "".join(f"\n    {_printable(part)}" for part in trace.splitlines())
        return line


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        body: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in _fields(record).items():
            body[f"{name}_" if name in _OWN_KEYS else name] = value
        trace = _traceback(self, record)
        if trace:
            body["exception"] = trace
        return _TERMINAL_CODES.sub(_escaped, _json(body))


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return {str(name): value for name, value in fields.items()} if fields else {}


def _time(record: logging.LogRecord) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return formatter.formatException(record.exc_info)


def _word(value: Any) -> str:
    """A value as one word: bare when it cannot be misread, quoted otherwise."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else _printable(_json(value))
    return _printable(_json(value))


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _json(value: Any) -> str:
    """Compact JSON.  Values that it cannot hold appear as text: a log line must never fail."""
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (OverflowError, TypeError, ValueError, RecursionError):
        pass  # an integer wider than 64 bits, a key that is no text, a lone surrogate, a cycle
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json(str(k))}:{_json(v)}" for k, v in value.items()) + "}"
    return msgspec.json.encode(ascii(value)).decode()
