"""Runs of every script that measures or records and that a page names."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
COMMAND = re.compile(r"python (?:-m )?(scripts[./][a-z_./]+)")
RUN_S_MAX = 1800.0
ENGINE_PYTHON = "SELECT_SERVICE_{}_PYTHON"
"""Environment variable with the path of a Python that has the engine installed."""

RUNS = {
    "scripts.bench.assumed_bookings": "--ranks 2 --bookings 20",
    "scripts.bench.cache_groups": "--cases 2:1:16 --rounds 2",
    "scripts.bench.plain_ranks": "--before HEAD --cases event:1 --rounds 2 --without-instructions",
    "scripts/bench/decide.py": "--ranks 8 --hashes 8 --scenes few --rounds 2",
    "scripts.bench.pair_decisions": "--ranks 2 --hosts 1 --rounds 1",
    "scripts.bench.planner": "--trace TRACE --minutes 2 --speedup 20 --out FOLDER",
    "scripts.bench.planner_quality": (
        "--scenario burst --mode agg --interval 60 --minutes 10 --trace TRACE"
    ),
    "scripts.bench.quality": (
        "--requests 200 --workloads tenants --seeds 1 --loads 0.6 --choosers work:reference"
    ),
    "scripts.bench.quality.fair_queue": "--seconds 2 --seeds 1",
    "scripts.bench.quality.over_http": "--workloads tenants --seeds 1 --requests 40",
    "scripts.bench.quality.switchback": "agents --requests 400",
    "scripts.bench.suite": (
        "select floor --quick --no-reference --repeats 1 --seconds 1 --out FOLDER"
    ),
}
"""Smallest arguments of each script, keyed by the name in the page's command.

TRACE is replaced by a Mooncake trace, FOLDER by an empty folder.
"""
OF_ENGINES = {
    "scripts/record_engine_streams.py": "ENGINE --out FOLDER",
    "scripts/record_cache_groups.py": "--out FOLDER full_and_window full_and_state",
    "scripts/recording/engine_answers.py": "ENGINE --out FOLDER",
}
"""Arguments of scripts that need a real engine."""
VLLM_ALONE = {"scripts/record_cache_groups.py"}
"""Scripts that record vLLM alone."""
NOT_RUN = {
    "scripts.bench.quality.pair_runs": "its fleets take minutes; the tests beside it run one",
    "scripts.bench.sick_fleet": "its six engines with faults take minutes and both cores",
    "scripts.bench.quality.rollout_steps": "its scenes take minutes; the tests beside it run one",
    "scripts.bench.request_instructions": "valgrind runs whole services for minutes",
    "scripts.docs": "tests/pages/test_docs.py runs it",
    "scripts.netns_replicas": "tests/proofs/test_netns_replicas.py runs it",
}


def scripts_in_pages() -> set[str]:
    """Return the names of all scripts in the commands of all pages."""
    found = {name for page in PAGES for name in COMMAND.findall(page.read_text())}
    return {name.rstrip(".") for name in found}


def test_every_script_that_a_page_names_is_run() -> None:
    assert scripts_in_pages() <= {*RUNS, *OF_ENGINES, *NOT_RUN}


def run(name: str, words: list[str], python: str = sys.executable) -> str:
    """Run a script, require exit status 0, and return its output."""
    how = [name] if "/" in name else ["-m", name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, *how, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def trace_in(folder: Path) -> Path:
    """Write a trace of ten minutes of requests, many of which share a prefix."""
    path = folder / "trace.jsonl"
    lines = [
        {
            "timestamp": 500 * i,
            "input_length": 1024 + 512 * (i % 3),
            "output_length": 20,
            "hash_ids": [i % 7, 100 + i % 11, 1000 + i, 3000 + i][: 2 + i % 3],
        }
        for i in range(1200)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.slow
@pytest.mark.timeout(RUN_S_MAX)
@pytest.mark.parametrize("name", RUNS)
def test_a_measurement_runs_to_its_end(name: str, tmp_path: Path) -> None:
    places = {"TRACE": str(trace_in(tmp_path)), "FOLDER": str(tmp_path)}
    run(name, [places.get(word, word) for word in RUNS[name].split()])


def engine_python(engine: str) -> str | None:
    return os.environ.get(ENGINE_PYTHON.format(engine.upper()))


@pytest.mark.slow
@pytest.mark.timeout(RUN_S_MAX)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("name", OF_ENGINES)
def test_a_real_engine_is_recorded(name: str, engine: str, tmp_path: Path) -> None:
    if engine != "vllm" and name in VLLM_ALONE:
        pytest.skip("a recorder of vLLM alone")
    python = engine_python(engine)
    if python is None:
        pytest.skip(f"{ENGINE_PYTHON.format(engine.upper())} is not set")
    given = {"ENGINE": engine, "FOLDER": str(tmp_path)}
    run(name, [given.get(word, word) for word in OF_ENGINES[name].split()], python)
    assert list(tmp_path.iterdir())
