"""RFC 7386 and RFC 6902, as far as an API server needs them."""

import copy
from typing import Any


class PatchError(Exception):
    """Patch that does not apply."""


def merged(target: Any, patch: Any) -> Any:
    """Return the target with a merge patch of RFC 7386 applied."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def patched(target: Any, operations: Any) -> Any:
    """Return the target with a JSON patch of RFC 6902 applied: test, add, replace and remove.

    Raises PatchError.
    """
    result = copy.deepcopy(target)
    if not isinstance(operations, list):
        raise PatchError("a JSON patch is a list")
    for operation in operations:
        _apply(result, operation)
    return result


def _apply(target: Any, operation: dict[str, Any]) -> None:
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in _parts(operation)]
    for part in parents:
        target = _member(target, part)
    name = operation.get("op")
    if name == "test":
        if _member(target, last) != operation["value"]:
            raise PatchError(f"testing value {operation['path']} failed")
    elif name == "add" and isinstance(target, list):
        at = len(target) if last == "-" else int(last)
        target.insert(at, operation["value"])
    elif name in ("add", "replace"):
        if name == "replace":
            _member(target, last)
        target[int(last) if isinstance(target, list) else last] = operation["value"]
    elif name == "remove":
        _member(target, last)
        del target[int(last) if isinstance(target, list) else last]
    else:
        raise PatchError(f"unknown operation {name!r}")


def _parts(operation: dict[str, Any]) -> list[str]:
    path = operation.get("path", "")
    if not path.startswith("/"):
        raise PatchError(f"not a path: {path!r}")
    return list(path.split("/")[1:])


def _member(target: Any, part: str) -> Any:
    try:
        return target[int(part)] if isinstance(target, list) else target[part]
    except (KeyError, IndexError, ValueError, TypeError):
        raise PatchError(f"nothing at {part!r}") from None
