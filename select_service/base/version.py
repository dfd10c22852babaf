"""Version of the package."""

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """Return the version of the installed package, or of the source tree."""
    try:
        return version("select-service")
    except PackageNotFoundError:
        return "0.3.0+source"
