"""Tests of pyproject.toml, and of README and guides about the project's metadata."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.builders.launched_process import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()
UPGRADE = (ROOT / "docs" / "guides" / "upgrade.md").read_text()


def test_the_guide_describes_every_extra() -> None:
    (table,) = re.findall(
        r"^\| extra \| contents \|\n(.*?)\n(?:\n|\Z)", UPGRADE, re.DOTALL | re.MULTILINE
    )
    named = {
        name for row in table.splitlines() for name in re.findall(r"`(.*?)`", row.split("|")[1])
    }
    assert named == {name for name, needs in PROJECT["optional-dependencies"].items() if needs}


def test_packages_with_used_internals_are_bounded_above() -> None:
    needed = PROJECT["optional-dependencies"]["server"]
    bounded = {re.split(r"[><=; ]", each, maxsplit=1)[0] for each in needed if "<" in each}
    assert {"httptools", "llvmlite", "numba", "pyzmq", "starlette", "uvicorn"} <= bounded


@pytest.mark.parametrize(
    ("name", "version"), [("numba", "0.65.0"), ("llvmlite", "0.47.0"), ("numpy", "2.3.5")]
)
def test_the_compiler_may_be_that_of_images_of_engines(name: str, version: str) -> None:
    """These are the versions that vLLM 0.33 pins."""
    server = map(Requirement, PROJECT["optional-dependencies"]["server"])
    (needed,) = (each for each in server if each.name == name)
    assert version in needed.specifier


def test_the_readme_installs_into_an_environment() -> None:
    """Debian's pip refuses to install outside of an environment."""
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL):
        if "pip install" in block:
            assert block.index("-m venv") < block.index("pip install")
