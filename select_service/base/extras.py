"""Installation advice for missing optional packages."""

_OURS = ("select_service", "indexer")


def installation_advice(error: ModuleNotFoundError, extra: str) -> str:
    """Return what to install for a missing module.

    Raises `error` itself if the module belongs to this project, since no extra installs it.
    """
    package = (error.name or "").partition(".")[0]
    # A missing module of this project is a bug and needs its traceback.
    if package in _OURS or not package:
        raise error
    return f"the package {package} is not installed: pip install 'select-service[{extra}]'"
