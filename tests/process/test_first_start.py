"""Tests of starts without cached machine code: their messages and their end."""

import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from indexer.jit.kernel_sources import kernel_modules
from tests.builders.launched_process import START_S_MAX, free_port, own_command, own_environment
from tests.builders.polling import eventually
from tests.builders.running import Running, run_script, run_to_end

pytestmark = pytest.mark.process
LEFT_OUT = ("select_service.sim.engine.",)
"""Kernels compiled for replays alone."""
N_KERNELS = sum(n for name, n in kernel_modules().items() if not name.startswith(LEFT_OUT))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_kernels_are_compiled_ends_all_processes(tmp_path, number):
    """Check that SIGINT reaches the children, too: nothing compiles on after a Ctrl-C."""
    command = own_command("--host", "127.0.0.1", "--port", str(free_port()))
    environment = own_environment({"NUMBA_CACHE_DIR": str(tmp_path)})
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert f"compiling kernels: 0 of {N_KERNELS}" in process.stderr.readline()
            children = _children(process.pid)
            process.send_signal(number)
            assert process.wait(START_S_MAX) == 0
            rest = process.stderr.read()
        finally:
            process.kill()
    assert "listening" not in rest
    eventually(lambda: not any(_runs(child) for child in children))
    assert not list(tmp_path.glob("indexer.index.store_kernels-*/complete")), "it was too late"


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_warm_cache_compiles_and_logs_nothing():
    assert run_to_end("compile")[0] == 0
    status, said, progress = run_to_end("compile")
    assert (status, progress) == (0, "")
    assert said.startswith("all kernels were compiled already: ")
    with Running() as service:
        assert not [line for line in service.all_lines() if "compil" in line["message"]]


def test_a_start_that_finds_all_code_imports_no_compiler(warm_cache):
    script = (
        "import sys, select_service.server.lifecycle; "
        "print('numba' in sys.modules, 'llvmlite' in sys.modules)"
    )
    assert run_script(script, NUMBA_CACHE_DIR=str(warm_cache))[:2] == (0, "False True\n")


def test_a_read_only_cache_is_reported(tmp_path):
    (tmp_path / "file").touch()
    status, _, errors = run_to_end("compile", "--cache", str(tmp_path / "file" / "cache"))
    assert status == 2
    assert errors == (
        f"select-service: error: machine code cannot be written to {tmp_path}/file/cache: give "
        "--cache DIR, a directory writable for this user\n"
    )


def test_without_a_home_the_cache_is_a_private_directory(tmp_path, warm_cache):
    """Check a pod with `USER 1000`, which has a temporary directory but no home directory."""
    (tmp_path / "file").touch()
    private = tmp_path / f"select-service-kernels-{os.getuid()}"
    private.mkdir(mode=0o700)
    for directory in warm_cache.iterdir():
        (private / directory.name).symlink_to(directory)
    home = str(tmp_path / "file" / "home")
    with Running(NUMBA_CACHE_DIR="", HOME=home, TMPDIR=str(tmp_path)) as service:
        advice = [line for line in service.all_lines() if line["level"] == "WARNING"]
        assert service.call("GET", "/health").status == 200
    assert [str(private) in line["message"] for line in advice] == [True]
    assert "select-service compile --cache DIR" in advice[0]["message"]
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


@pytest.fixture
def warm_cache():
    """Return the directory with all machine code of this checkout."""
    status, said, _ = run_to_end("compile")
    assert status == 0
    return Path(said.strip().rpartition(": ")[2])
