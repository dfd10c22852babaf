"""Which version this is."""

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """Version of the installed package, or of the source tree when it is run from there."""
    try:
        return version("select-service")
    except PackageNotFoundError:
        return "0.3.0+source"
