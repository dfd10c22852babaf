"""Environments of the reference from PyPI, in a folder of the checkout that git ignores."""

import subprocess
import sys
from pathlib import Path

from scripts.bench.services_under_test import ROOT, ServiceUnderTest, reference_service
from scripts.bench.suite.machine_facts import installed_version

PACKAGE = "ai-dynamo-runtime"
FOLDER = ROOT / ".tools"
INSTALL_S_MAX = 900
NAMES_SELECTIONS = (1, 6)
"""First version in which a reservation has the id of its selection."""


def of_version(version: str) -> ServiceUnderTest:
    """Return a version; its environment is made if missing."""
    return _contender(str(_environment(version) / "bin" / "python"), version)


def of_python(python: str) -> ServiceUnderTest:
    """Return the version in an environment with the package."""
    return _contender(python, installed_version(python, PACKAGE))


def _contender(python: str, version: str) -> ServiceUnderTest:
    made = reference_service(python, version)
    first, second = version.split(".")[:2]
    is_later = (int(first), int(second)) >= NAMES_SELECTIONS
    return made._replace(id_field="selection_id") if is_later else made


def _environment(version: str) -> Path:
    folder = FOLDER / f"{PACKAGE}-{version}"
    complete = folder / "complete"
    if not complete.exists():
        print(f"installing {PACKAGE}=={version} ...", file=sys.stderr)
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        pip = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check")
        _run(*pip, "install", "--quiet", f"{PACKAGE}=={version}")
        complete.touch()
    return folder


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=INSTALL_S_MAX)
