"""Tests that the client installs next to engines: small, without bounds, and working alone."""

import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.builders import worker_body
from tests.builders.in_thread import InThread
from tests.builders.launched_process import ROOT
from tests.publishing.client_packages import CLIENT, NO_EXTRA, n_bytes, packages, python_with

BYTES_MAX = 60_000_000
PACKAGES_MAX = 14
MODULES_MAX = 310
"""Most modules of an import beyond those of Python's start: 260 take 0.2 s of a processor."""
RAY = """
import sys
from unittest.mock import MagicMock
names = ("ray", "ray.exceptions", "ray.serve", "ray.serve.handle", "ray.serve.request_router")
sys.modules.update((name, MagicMock()) for name in names)
import select_service.ray
"""
"""Fake of Ray, which comes with the engine; the fake is enough to import this project's modules."""
LEASE = """
import sys
from select_service.client import Selector
with Selector([sys.argv[1]], model_name="m") as selector:
    with selector.lease(token_ids=list(range(10))) as lease:
        lease.tokens(3)
        print(lease.endpoint, lease.booked)
"""
COMMAND = """
import sys
from select_service.cli.entry_points import run_{name}
sys.exit(run_{name}())
"""


@pytest.fixture(scope="module")
def client_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_with(CLIENT, tmp_path_factory.mktemp("client"))


@pytest.fixture(scope="module")
def plain_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_with(NO_EXTRA, tmp_path_factory.mktemp("plain"))


def run(python: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [python, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_client_needs_few_packages_and_none_of_the_server():
    found = packages(CLIENT)
    assert {"httpx", "msgspec", "sniffio", "tenacity", "xxhash"} <= found.keys()
    assert not {"numba", "numpy", "llvmlite", "pyzmq", "starlette", "uvicorn"} & found.keys()
    assert len(found) <= PACKAGES_MAX


def test_the_client_is_small():
    folders = (ROOT / name for name in ("indexer", "select_service"))
    files = (path for folder in folders for path in folder.rglob("*") if path.suffix != ".pyc")
    own = sum(path.stat().st_size for path in files if path.is_file())
    assert own + n_bytes(packages(CLIENT).values()) <= BYTES_MAX


@pytest.mark.parametrize("line", CLIENT)
def test_the_client_bounds_no_version_above(line):
    assert {each.operator for each in Requirement(line).specifier} <= {">="}


def test_an_import_of_the_client_brings_few_modules(client_python):
    code = "import sys; before = {*sys.modules}; import select_service.client"
    found = run(client_python, f"{code}; print(*sys.modules.keys() - before)").stdout.split()
    assert "select_service.client.lease" in found
    assert len(found) <= MODULES_MAX


@pytest.mark.process
def test_the_client_works_with_its_own_packages_alone(client_python):
    with InThread() as service:
        assert service.call("POST", "/workers", worker_body(1)).status == 201
        done = run(client_python, LEASE, f"http://127.0.0.1:{service.port}")
    assert (done.stdout, done.stderr) == ("http://w1:8000 True\n", "")


@pytest.mark.parametrize("name", ["select_service", "select_planner"])
@pytest.mark.parametrize("python", ["plain_python", "client_python"])
def test_commands_name_the_extra_that_they_lack(request, python, name):
    done = run(request.getfixturevalue(python), COMMAND.format(name=name), "--port", "0")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{name.replace('_', '-')}: error: the package ")
    assert line.endswith(" is not installed: pip install 'select-service[server]'")
    assert (done.returncode, done.stdout) == (2, "")


def test_the_client_names_the_extra_that_it_lacks(plain_python):
    done = run(plain_python, "import select_service.client")
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: the package tenacity is not installed: "
        "pip install 'select-service[client]'"
    )


def test_a_module_of_the_project_that_is_missing_is_no_lack_of_an_extra(client_python):
    code = (
        "from select_service.cli import entry_points as e; "
        "e._run_module('x', 'select_service.none')"
    )
    done = run(client_python, code)
    assert "No module named 'select_service.none'" in done.stderr
    assert "pip install" not in done.stderr


def test_programs_of_ray_need_no_server(client_python):
    assert run(client_python, RAY).stderr == ""
