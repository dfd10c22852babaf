"""Builder of published files: an sdist, and wheels from the sdist.

One wheel is for every platform and has no machine code: a first start compiles for a minute. Each
of the others is for Linux on one architecture and one version of Python, and contains the kernels
for any x86-64 processor with AVX2 (x86-64-v3), or for any ARMv8: a first start compiles nothing.
Installers prefer a matching one. The default is one such wheel, for x86-64 and this Python.

The sdist is built from a copy of the tree, and all wheels from the sdist: files of an earlier
build, or files missing in the sdist, cannot enter a wheel.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLATFORM = "manylinux_2_27"
"""Platform tag of numba and llvmlite, both required. The code itself needs only older functions of
the C library (docs/decisions/0015).
"""
MACHINES = ("x86_64", "aarch64")
TAG = """\
import sys
python = "cp" + "".join(map(str, sys.version_info[:2]))
print(f"{python}-{python}{sys.abiflags}", end="")
"""
NOT_COPIED = (
    *("*.egg-info", "__pycache__", "build", "dist", "kernels_of_*", "node_modules"),
    *(".git", ".venv*", ".*_cache", ".hypothesis", ".tools", "fuzz-found"),
)
SOURCE_DATE = "315532800"
"""Default date of files in archives: 1980, the earliest possible."""


def main() -> int:
    given = _arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        made = [sdist(given.source.resolve(), work)]
        made.append(wheel(made[0], work))
        for python in () if given.pure else given.python or (sys.executable,):
            runs = _with_dependencies(python, given.source, work)
            for machine in given.machine or (platform.machine(),):
                made.append(platform_wheel(made[1], work, runs, machine, given.cache))
        for path in made:
            print(shutil.copy(path, given.out))
    return 0


def _arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="scripts/build_wheel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="dist here")
    parser.add_argument("--source", type=Path, default=ROOT, metavar="DIR", help="this project")
    parser.add_argument("--pure", action="store_true", help="not the wheel with machine code")
    parser.add_argument(
        "--cache", metavar="DIR", help="machine code is looked for, and left, here as well"
    )
    parser.add_argument(
        "--python",
        action="append",
        metavar="PYTHON",
        help="as `uv venv --python` takes it, as 3.12: make a wheel for it, instead of for the one "
        "that runs this; may be repeated; needs a package registry",
    )
    parser.add_argument(
        "--machine",
        action="append",
        choices=MACHINES,
        help="make a wheel for it, instead of for this machine's; may be repeated",
    )
    given = parser.parse_args()
    if not given.pure and (sys.platform, platform.machine()) != ("linux", "x86_64"):
        parser.error("machine code is made for Linux on x86-64 only: --pure")
    return given


def sdist(source: Path, work: Path) -> Path:
    """Return the archive of a project's sources, in a folder below `work`."""
    copy = work / "copy"
    shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    _build("--sdist", copy, work / "sdist")
    return _only(work / "sdist")


def wheel(archive: Path, work: Path) -> Path:
    """Return the wheel for every platform, built from an sdist."""
    with tarfile.open(archive) as opened:
        # The filter refuses paths outside of the folder.
        opened.extractall(work / "unpacked", filter="data")
    _build("--wheel", _only(work / "unpacked"), work / "pure")
    return _only(work / "pure")


def platform_wheel(pure: Path, work: Path, python: Path, machine: str, cache: str | None) -> Path:
    """Return the wheel with machine code, compiled from its own sources.

    python: interpreter with the dependencies; the wheel is for its version
    """
    folder = Path(tempfile.mkdtemp(dir=work))
    _run("wheel", "unpack", "--dest", folder / "opened", pure)
    tree = _only(folder / "opened")
    portable = ("compile", "--portable", "--machine", machine)
    kept = ("--cache", Path(cache).absolute()) if cache else ()
    _run("select_service", *portable, *kept, cwd=tree, env={"PYTHONPATH": str(tree)}, python=python)
    shutil.rmtree(tree / "build", ignore_errors=True)
    # Byte code would be stale or of another Python at the user's.
    for compiled in list(tree.rglob("__pycache__")):
        shutil.rmtree(compiled)
    (description,) = tree.glob("*.dist-info/WHEEL")
    tag = subprocess.run([python, "-c", TAG], capture_output=True, text=True, check=True).stdout
    description.write_text(_tagged(description.read_text(), f"{tag}-{PLATFORM}_{machine}"))
    (folder / "packed").mkdir()
    _run("wheel", "pack", "--dest-dir", folder / "packed", tree)
    return _only(folder / "packed")


def _with_dependencies(python: str, source: Path, work: Path) -> Path:
    """Return a Python of a version with all locked packages; this one has them."""
    if python == sys.executable:
        return Path(python)
    folder = Path(tempfile.mkdtemp(dir=work))
    lock = ("--require-hashes", "-r", source / "requirements/server.lock")
    for command in (
        ("venv", "--python", python, folder / "venv"),
        ("pip", "install", "--python", folder / "venv", *lock),
    ):
        uv = [sys.executable, "-m", "uv", "--quiet"]  # of this environment, independent of PATH
        done = subprocess.run([*uv, *map(str, command)], check=False)
        if done.returncode:
            sys.exit(f"scripts/build_wheel: `uv {command[0]}` failed with {done.returncode}")
    return folder / "venv" / "bin" / "python"


def _tagged(description: str, tag: str) -> str:
    """Return the file WHEEL of a wheel with machine code."""
    kept = [
        line
        for line in description.splitlines()
        if line.strip() and not line.startswith(("Tag:", "Root-Is-Purelib:"))
    ]
    return "\n".join([*kept, "Root-Is-Purelib: false", f"Tag: {tag}", ""])


def _build(what: str, source: Path, out: Path) -> None:
    """Run the installed build backend, with its locked version."""
    _run("build", "--no-isolation", what, "--outdir", out, source)


def _run(
    module: str,
    *words: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    python: Path | None = None,
) -> None:
    """Run a command; ends this process after a failure, with the error above."""
    # Fixed dates make archives reproducible.
    environment = {"SOURCE_DATE_EPOCH": SOURCE_DATE, **os.environ, **(env or {})}
    command = [python or sys.executable, "-m", module, *map(str, words)]
    done = subprocess.run(command, env=environment, stdout=sys.stderr, check=False, cwd=cwd)
    if done.returncode:
        sys.exit(f"scripts/build_wheel: `{module}` failed with {done.returncode}")


def _only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


if __name__ == "__main__":
    sys.exit(main())
