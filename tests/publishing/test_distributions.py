"""Tests of the distributions: complete, licensed, and with machine code that needs no compiler."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from indexer.jit.kernel_sources import kernel_modules
from scripts.publishing import distributions
from tests.builders.launched_process import ROOT, LaunchedProcess, free_port
from tests.builders.polling import eventually
from tests.builders.running import run_to_end

pytestmark = pytest.mark.process

BUILD_S_MAX = 280
SETTINGS = '"x86_64": (("CPU_NAME", "x86-64-v3"), ("CPU_FEATURES", "")),'
THIS_PROCESSOR = '"x86_64": (),'
"""Replacement with code of this processor, most of which the suite has already."""


def build(out: Path, *flags: str) -> dict[str, Path]:
    """Return the built files by the end of the file name."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.publishing.distributions", "--out", out, *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=BUILD_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {path.name.rpartition("-")[2]: path for path in out.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tmp_path_factory.mktemp("pure"), "--pure")


@pytest.fixture(scope="module")
def sdist_names(built: dict[str, Path]) -> set[str]:
    (archive,) = [path for path in built.values() if path.name.endswith(".tar.gz")]
    with tarfile.open(archive) as opened:
        return {each.name.partition("/")[2] for each in opened if each.isfile()}


@pytest.fixture(scope="module")
def wheel(built: dict[str, Path]) -> zipfile.ZipFile:
    return zipfile.ZipFile(built["any.whl"])


def tracked(*folders: str) -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository")
    command = ("git", "-C", ROOT, "ls-files", "-z", *folders)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split("\0") if name and (ROOT / name).exists()}


def test_a_python_that_is_nowhere_ends_the_build_in_words(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # uv is that of this environment
    with pytest.raises(SystemExit, match="`uv venv` failed with "):
        distributions._with_dependencies("3.1", ROOT, tmp_path)


def test_the_sdist_has_the_files_of_the_repository(sdist_names):
    made = {"PKG-INFO", "setup.cfg"}
    found = {name for name in sdist_names if not name.startswith("select_service.egg-info/")}
    assert found - made - tracked() == set()
    assert tracked() - found == set()


def test_the_wheel_has_all_of_both_packages_and_nothing_else(wheel):
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == tracked("indexer", "select_service")
    assert {"indexer/py.typed", "select_service/py.typed"} <= found


def test_the_wheel_has_the_licences_of_its_contents(wheel):
    """The licences are those of this project and of the two libraries in the pages."""
    licences = {
        name.partition("/licenses/")[2] for name in wheel.namelist() if "/licenses/" in name
    }
    api = "select_service/api"
    assert licences == {
        "LICENSE",
        f"{api}/page/uplot/LICENSE",
        f"{api}/viewer/LICENSE",
        f"{api}/viewer/NOTICE",
        f"{api}/viewer/bsd-3-clause.LICENSE.txt",
        f"{api}/viewer/swagger-ui-bundle.js.LICENSE.txt",
    }


def metadata(wheel: zipfile.ZipFile, name: str = "METADATA") -> Message:
    (path,) = [each for each in wheel.namelist() if each.endswith(f".dist-info/{name}")]
    return Parser().parsestr(wheel.read(path).decode())


def test_the_metadata_describe_the_package(wheel):
    found = metadata(wheel)
    assert found["License-Expression"] == "Apache-2.0 AND BSD-3-Clause AND MIT"
    assert "Typing :: Typed" in found.get_all("Classifier", [])
    assert "vllm" in found["Keywords"].split(",")
    assert found["Description-Content-Type"] == "text/markdown"
    assert "# select-service" in str(found.get_payload())
    (requirement,) = [
        each for each in found.get_all("Requires-Dist", []) if each.startswith("uvicorn")
    ]
    assert ">=0.54" in requirement
    assert metadata(wheel, "WHEEL")["Tag"] == "py3-none-any"


@pytest.mark.parametrize(
    "settings",
    [THIS_PROCESSOR, pytest.param(SETTINGS, marks=pytest.mark.slow)],
    ids=["this processor", "any processor"],
)
def test_a_wheel_with_machine_code_starts_without_compiling(tmp_path, settings):
    source, out = tmp_path / "source", tmp_path / "out"
    _copy_project(source, settings)
    status, said, _ = run_to_end("compile")
    assert status == 0
    cache = said.strip().rpartition(": ")[2]
    (path,) = [
        path
        for path in build(out, "--source", str(source), "--cache", cache).values()
        if path.name.endswith("x86_64.whl")
    ]
    with zipfile.ZipFile(path) as opened:
        assert metadata(opened, "WHEEL")["Root-Is-Purelib"] == "false"
        kept = [name for name in opened.namelist() if name.endswith(".kernel")]
    assert len(kept) == sum(kernel_modules().values())

    python = _installed(path, tmp_path / "venv")
    log, home = _log_of_a_start(python, tmp_path)
    assert "compiling" not in log
    assert "using machine code of the package" in log
    assert list(home.iterdir()) == [], "nothing was compiled, so nothing was kept"

    damaged = next(
        python.parents[1].glob("lib/*/site-packages/indexer/kernels_of_wheel/*/*.kernel")
    )
    damaged.write_bytes(damaged.read_bytes()[:-1])
    _assert_not_used(python, tmp_path, f"{damaged.parent.name}/{damaged.name} is damaged")


@pytest.mark.slow
def test_a_wheel_for_another_machine_has_code_of_that_machine(tmp_path):
    files = build(tmp_path / "out", "--machine", "aarch64").values()
    (path,) = [path for path in files if path.name.endswith("aarch64.whl")]
    with zipfile.ZipFile(path) as opened:
        assert metadata(opened, "WHEEL")["Tag"].endswith("-manylinux_2_27_aarch64")
        kept = [name for name in opened.namelist() if name.endswith(".kernel")]
        (manifest,) = [
            name for name in opened.namelist() if name.endswith("/kernels_of_wheel/manifest.json")
        ]
        assert '"machine": "aarch64"' in opened.read(manifest).decode()
        begin = opened.read(kept[0]).index(b"\x7fELF")
        assert opened.read(kept[0])[begin + 18] == 183  # EM_AARCH64
    assert len(kept) == sum(kernel_modules().values())


def _copy_project(folder: Path, settings: str) -> None:
    for name in sorted(tracked("indexer", "select_service")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    sources = folder / "indexer" / "jit" / "kernel_sources.py"
    text = sources.read_text()
    assert SETTINGS in text
    sources.write_text(text.replace(SETTINGS, settings))


def _installed(wheel: Path, folder: Path) -> Path:
    """Return the Python of a new environment with the dependencies of this environment."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("-packages"))
    )
    pip = (sys.executable, "-m", "pip", "--python", python, "--quiet")
    command = (*pip, "install", "--no-deps", "--no-index", wheel)
    subprocess.run(command, check=True, timeout=BUILD_S_MAX)
    return python


def _log_of_a_start(python: Path, folder: Path) -> tuple[str, Path]:
    """Return the log and the home of a start without the caller's files and settings."""
    with _started(python, folder / "home") as service:
        service.wait_until_healthy()
        assert service.stop_with_signal()[0] == 0
        return service.read_log(), folder / "home"


def _assert_not_used(python: Path, folder: Path, why: str) -> None:
    """Check that a start reports the reason and compiles; the start is ended at once."""
    with _started(python, folder / "another") as service:
        eventually(lambda: "compiling kernels: 0 of" in service.read_log())
        assert service.stop_with_signal()[0] == 0
        assert f'machine code of the package not used why="{why}"' in service.read_log()


def _started(python: Path, home: Path) -> LaunchedProcess:
    home.mkdir()
    port = free_port()
    place = ("--host", "127.0.0.1", "--port", str(port), "--drain-secs", "0")
    command = (python.with_name("select-service"), *place)
    environment = {"HOME": str(home), "TMPDIR": str(home), "PATH": os.environ["PATH"]}
    return LaunchedProcess(command, environment, port, folder=home)
