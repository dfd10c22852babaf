"""Advice for installations that lack the packages of an extra."""

_OURS = ("select_service", "indexer")


def advice_to_install(error: ModuleNotFoundError, extra: str) -> str:
    """Return what to install for a module that is missing.

    Raises `error` itself where the module is one of this project: no extra brings it.
    """
    package = (error.name or "").partition(".")[0]
    if package in _OURS or not package:
        raise error
    return f"the package {package} is not installed: pip install 'select-service[{extra}]'"
