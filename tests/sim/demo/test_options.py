"""Tests of the demo's command line and of errors before anything starts."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from select_service.sim.demo.demo_options import parse_options
from select_service.sim.demo.demo_run import run_demo
from select_service.sim.demo.service_process import HOST, ServiceProcessFailed, choose_port

ROOT = Path(__file__).parents[3]


def test_defaults_make_a_sensible_demo() -> None:
    options = parse_options([])
    assert (options.workers, options.ranks, options.block_size) == (4, 1, 16)
    assert not options.once
    assert options.trace is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--requests", "0"],
        ["--workers", "-1"],
        ["--blocks", "many"],
        ["--speedup", "0"],
        ["--speedup", "nan"],
        ["--lose", "1"],
        ["--unknown"],
    ],
)
def test_senseless_values_end_with_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(arguments)
    assert ended.value.code == 2


def test_help_needs_no_installed_package() -> None:
    command = [sys.executable, "-S", "-E", "-m", "select_service.sim.demo", "--help"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--trace FILE" in shown.stdout


def test_a_cache_too_small_for_the_workload_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(parse_options(["--blocks", "3", "--requests", "5"])) == 1
    assert "give --blocks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("trace.jsonl", None, "cannot be read"),
        ("trace.jsonl", b"", "line 1"),
        ("trace.jsonl", b"not json", "line 1"),
        ("trace.jsonl", b'{"timestamp": 0}', "hash_ids"),
        ("trace.jsonl.gz", b"no gzip", "cannot be read"),
    ],
)
def test_an_invalid_trace_is_reported_before_any_installation(
    name: str, content: bytes | None, told: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    options = [sys.executable, "-S", "-E", "-m", "select_service.sim.demo.demo_options"]
    command = [*options, "--trace", str(tmp_path / name)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2
    assert told in ended.stderr.splitlines()[-1]


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        with pytest.raises(ServiceProcessFailed, match="cannot be used"):
            choose_port(other.getsockname()[1])


def test_port_zero_takes_a_free_one() -> None:
    assert choose_port(0) > 0
