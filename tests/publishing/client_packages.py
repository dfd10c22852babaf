"""The packages that the client needs, and an environment without any other packages."""

import re
import tomllib
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.builders.launched_process import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NO_EXTRA = PROJECT["dependencies"]
CLIENT = [*NO_EXTRA, *PROJECT["optional-dependencies"]["client"]]


def packages(lines: Iterable[str]) -> dict[str, Distribution]:
    """Return, by name, the packages that these requirements bring into an environment like this."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(line) for line in lines]
    while waiting:
        wanted = waiting.pop()
        environments = [{"extra": extra} for extra in ("", *wanted.extras)]
        name = canonicalize_name(wanted.name)
        if name not in found:
            found[name] = distribution(name)
        for line in found[name].requires or ():
            more = Requirement(line)
            is_needed = more.marker is None or any(map(more.marker.evaluate, environments))
            if is_needed and canonicalize_name(more.name) not in found:
                waiting.append(more)
    return found


def python_with(lines: Iterable[str], folder: Path) -> Path:
    """Return the Python of an environment that has only this checkout and these packages."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in packages(lines).values():
        for name in _top_names(package):
            (site / name).symlink_to(str(package.locate_file(name)))
    (site / "checkout.pth").write_text(f"{ROOT}\n")
    return folder / "bin" / "python"


def _top_names(package: Distribution) -> set[str]:
    """Return the names that the package has directly in the folder of packages."""
    names = {file.parts[0] for file in package.files or ()}
    return {name for name in names if re.fullmatch(r"[\w.-]+", name) and name != ".."} - {
        "__pycache__"
    }


def n_bytes(packages: Iterable[Distribution]) -> int:
    """Return the size of the files that the packages install, without compiled Python files."""
    files = (file for package in packages for file in package.files or ())
    paths = (Path(str(file.locate())) for file in files if file.suffix != ".pyc")
    return sum(path.stat().st_size for path in paths if path.is_file())
