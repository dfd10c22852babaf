"""Checkout of a few scripts with a `.venv` that counts as installed from the lock file."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = "requirements/dev.lock"

MARK_CURRENT = f"""
    . scripts/environment.sh
    fingerprint "$venv/bin/python" "$root/{LOCK}" >"$(stamp_of {LOCK})"
"""


def copy_scripts(folder: Path, names: tuple[str, ...]) -> None:
    """Copy scripts, metadata and the development lock file; make an empty .venv/bin."""
    for name in (*(f"scripts/{name}" for name in names), "pyproject.toml", LOCK):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / ".venv" / "bin").mkdir(parents=True)


def mark_current(folder: Path) -> None:
    """Mark `.venv` as installed from the lock file; its bin/python must exist."""
    subprocess.run(["bash", "-euc", MARK_CURRENT], cwd=folder, check=True)
