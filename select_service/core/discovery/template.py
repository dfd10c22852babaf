"""What a source that finds addresses says of each of them: a record with names in braces.

endpoint: http://{host}:{port}
"""

import re
from collections.abc import Mapping
from typing import Any

Fields = dict[str, Any]
"""Of a record of POST /workers, as they are written."""

ENDPOINT = "http://{host}:{port}"
"""Of a worker whose template says none."""
_NAMED = re.compile(r"\{(\w*)\}")


def in_url(host: str) -> str:
    """An address as URLs have it."""
    return f"[{host}]" if ":" in host else host


def filled(template: Mapping[str, Any], values: Mapping[str, str]) -> Fields:
    """The template with the values in place of their names, in texts at any depth."""
    return {str(name): _filled(value, values) for name, value in template.items()}


def template_error(template: Mapping[str, Any], known: frozenset[str]) -> str | None:
    """What is wrong with the names in it; None for nothing."""
    unknown = sorted({name for text in _texts(dict(template)) for name in _names(text)} - known)
    if not unknown:
        return None
    return f"unknown name `{{{unknown[0]}}}`: known are {', '.join(sorted(known))}"


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _NAMED.sub(lambda found: values[found[1]], value)
    if isinstance(value, dict):
        return {name: _filled(each, values) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    return value


def _names(text: str) -> list[str]:
    return _NAMED.findall(text)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in _texts(part)]
