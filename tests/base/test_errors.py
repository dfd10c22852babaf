"""Tests that errors cross processes unchanged, as multiprocessing and Ray require."""

import copy
import importlib
import inspect
import pickle
import pkgutil
from typing import Any, Literal, get_args, get_origin, get_type_hints

import indexer
import select_service
from select_service.client import Refused, SelectorError, Unavailable

NOT_IMPORTED = ("select_service.ray",)
"""Package that needs Ray and defines no errors."""
VALUES: dict[Any, Any] = {
    str: "text",
    int: 503,
    float | None: 1.5,
    int | None: 404,
    bool: True,
    bytes: b"body",
    dict[str, Any] | None: {"waiting": 3},
}


def errors() -> dict[str, type[Exception]]:
    """Return every public error of both packages by full name."""
    found = {}
    for package in (indexer, select_service):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.startswith(NOT_IMPORTED) or module.name.endswith("__main__"):
                continue
            for name, value in vars(importlib.import_module(module.name)).items():
                is_error = inspect.isclass(value) and issubclass(value, Exception)
                if is_error and value.__module__ == module.name and not name.startswith("_"):
                    found[f"{module.name}.{name}"] = value
    return found


def example(kind: type[Exception]) -> Exception:
    """Return an error of this class with a value for each parameter."""
    if not inspect.isfunction(kind.__init__):  # Python's own
        return kind("text")
    hints = get_type_hints(kind.__init__)
    positional, keywords = [], {}
    for parameter in list(inspect.signature(kind).parameters.values()):
        hint = hints[parameter.name]
        value = get_args(hint)[0] if get_origin(hint) is Literal else VALUES[hint]
        if parameter.kind is parameter.KEYWORD_ONLY:
            keywords[parameter.name] = value
        else:
            positional.append(value)
    return kind(*positional, **keywords)


def differences(error: Exception) -> list[str]:
    """Return the differences of the error after pickle or a copy."""
    kept = type(error), error.args, str(error), vars(error)
    makers = {
        **{
            f"pickle {number}": lambda n=number: pickle.loads(pickle.dumps(error, n))
            for number in range(pickle.HIGHEST_PROTOCOL + 1)
        },
        "copy": lambda: copy.copy(error),
    }
    found = []
    for name, make in makers.items():
        try:
            other = make()
        except Exception as fault:
            found.append(f"{name}: {fault}")
        else:
            if (type(other), other.args, str(other), vars(other)) != kept:
                found.append(f"{name}: {other!r}")
    return found


def test_every_error_survives_pickle_and_copy() -> None:
    found = errors()
    assert {Refused, SelectorError, Unavailable} <= set(found.values())
    failed = {}
    for name, kind in found.items():
        error = example(kind)
        error.add_note("seen by a worker")
        if different := differences(error):
            failed[name] = different
    assert failed == {}
