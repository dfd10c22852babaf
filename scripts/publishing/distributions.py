"""Builds what is published, into a folder: an sdist, and of it two wheels.

One wheel is for every platform and has no machine code: a first start there compiles for a minute.
The other is for Linux on x86-64 and the Python that runs this, and carries the kernels as compiled
for any processor with AVX2 (x86-64-v3): a first start compiles nothing.  Installers prefer it where
it fits.

The sdist is made of a copy of the tree, and both wheels of the sdist: neither what an earlier build
left behind nor what the sdist lacks can end up in them.
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
PLATFORM = "manylinux_2_27_x86_64"
"""As numba and llvmlite, without which it cannot run.  The code itself asks for less: what it calls
of the C library is older (docs/decisions/0015)."""
PYTHON = "cp" + "".join(map(str, sys.version_info[:2]))
NOT_COPIED = (
    *("*.egg-info", "__pycache__", "build", "dist", "kernels_of_*", "node_modules"),
    *(".git", ".venv*", ".*_cache", ".hypothesis", ".tools", "fuzz-found"),
)
SOURCE_DATE = "315532800"
"""Of files in archives when nothing else is asked for: 1980, the first that they can name."""


def main() -> int:
    given = _arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        made = [sdist(given.source.resolve(), work)]
        made.append(wheel(made[0], work))
        if not given.pure:
            made.append(platform_wheel(made[1], work, given.cache))
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
    given = parser.parse_args()
    if not given.pure and (sys.platform, platform.machine()) != ("linux", "x86_64"):
        parser.error("machine code is made for Linux on x86-64 only: --pure")
    return given


def sdist(source: Path, work: Path) -> Path:
    """The archive of a project's sources, in a folder below `work`."""
    copy = work / "copy"
    shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    _build("--sdist", copy, work / "sdist")
    return _only(work / "sdist")


def wheel(archive: Path, work: Path) -> Path:
    """The wheel for every platform, of an sdist."""
    with tarfile.open(archive) as opened:
        opened.extractall(work / "unpacked", filter="data")
    _build("--wheel", _only(work / "unpacked"), work / "pure")
    return _only(work / "pure")


def platform_wheel(pure: Path, work: Path, cache: str | None) -> Path:
    """The same with machine code, which is compiled from the sources in it."""
    _run("wheel", "unpack", "--dest", work / "opened", pure)
    tree = _only(work / "opened")
    portable = ("compile", "--portable", *(("--cache", Path(cache).absolute()) if cache else ()))
    _run("select_service", *portable, cwd=tree, env={"PYTHONPATH": str(tree)})
    shutil.rmtree(tree / "build", ignore_errors=True)
    for compiled in list(tree.rglob("__pycache__")):
        shutil.rmtree(compiled)
    (description,) = tree.glob("*.dist-info/WHEEL")
    description.write_text(_tagged(description.read_text()))
    (work / "platform").mkdir()
    _run("wheel", "pack", "--dest-dir", work / "platform", tree)
    return _only(work / "platform")


def _tagged(description: str) -> str:
    """The file WHEEL of a wheel with machine code for this Python."""
    kept = [
        line
        for line in description.splitlines()
        if line.strip() and not line.startswith(("Tag:", "Root-Is-Purelib:"))
    ]
    tag = f"{PYTHON}-{PYTHON}{sys.abiflags}-{PLATFORM}"
    return "\n".join([*kept, "Root-Is-Purelib: false", f"Tag: {tag}", ""])


def _build(what: str, source: Path, out: Path) -> None:
    """With the build backend that is installed here, whose version is locked."""
    _run("build", "--no-isolation", what, "--outdir", out, source)


def _run(
    module: str, *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    """What goes wrong stands above.  Ends this process then."""
    environment = {"SOURCE_DATE_EPOCH": SOURCE_DATE, **os.environ, **(env or {})}
    command = [sys.executable, "-m", module, *map(str, words)]
    done = subprocess.run(command, env=environment, stdout=sys.stderr, check=False, cwd=cwd)
    if done.returncode:
        sys.exit(f"scripts/build_wheel: `{module}` failed with {done.returncode}")


def _only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


if __name__ == "__main__":
    sys.exit(main())
