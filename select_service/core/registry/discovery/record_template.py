"""Templates of sources that find addresses: a worker record with placeholders in braces.

endpoint: http://{host}:{port}
"""

import re
from collections.abc import Mapping
from typing import Any

Fields = dict[str, Any]
"""Fields of a POST /workers record."""

DEFAULT_ENDPOINT = "http://{host}:{port}"
"""Default endpoint of a template."""
_NAMED = re.compile(r"\{(\w*)\}")


def host_in_url(host: str) -> str:
    """Return the host as written in URLs."""
    return f"[{host}]" if ":" in host else host


def fill_template(template: Mapping[str, Any], values: Mapping[str, str]) -> Fields:
    """Replace the placeholders, in texts at any depth."""
    return {str(name): _fill_value(value, values) for name, value in template.items()}


def find_template_error(template: Mapping[str, Any], allowed_names: frozenset[str]) -> str | None:
    """Return the error about an unknown placeholder, or None."""
    unknown = sorted(
        {name for text in _texts_in(dict(template)) for name in _placeholders_in(text)}
        - allowed_names
    )
    if not unknown:
        return None
    return f"unknown name `{{{unknown[0]}}}`: use one of {', '.join(sorted(allowed_names))}"


def _fill_value(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _NAMED.sub(lambda found: values[found[1]], value)
    if isinstance(value, dict):
        return {name: _fill_value(each, values) for name, each in value.items()}
    if isinstance(value, list):
        return [_fill_value(each, values) for each in value]
    return value


def _placeholders_in(text: str) -> list[str]:
    return _NAMED.findall(text)


def _texts_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in _texts_in(part)]
