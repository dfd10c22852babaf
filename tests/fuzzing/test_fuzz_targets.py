"""Tests of the fuzz targets: seeds and nearby inputs pass, and broken parsers fail."""

import subprocess
import sys
from random import Random

import pytest

from tests.builders.launched_process import ROOT
from tests.fuzzing.file_checks import LOGS, YAML_FILES
from tests.fuzzing.fuzz_targets import TARGETS

MUTANTS = 8
BROKEN = {
    "requests": ("reading.agrees", 0),
    "kv_events": ("scan_payload", 0),
    "bodies": ("decode_body", 0),
    "queries": ("parse_query", 0),
    "responses": ("ResponseParser", 0),
    "json_dumps": ("JsonReader", 0),
    "compact_dumps": ("adopt_blocks", 0),
    "compact_frames": ("CompactReader", 0),
    "metrics": ("parse_in_steps", 0),
    "canaries": ("parse_generated", 2),
    "engine_facts": ("validate_record", 0),
    "kubernetes": ("complete_record", 0),
    "planner_answers": ("decode_plugin", 0),
    "store_answers": ("LMCacheSource", 5),
    "client_answers": ("decode_migration", -1),
    "toml_keys": ("parse_keys_file", 0),
    "environment": ("parse_config", 0),
    "profiles": ("read_profile", 0),
    "archives": ("read_profile", 0),
    "states": ("add_checksum", 0),
    "texts": ("endpoint_error", 0),
}
"""Parser that a test breaks, and a seed that reaches the parser, by target."""
IN_TABLES = {"peer_messages", "settings", "logs"}
"""Targets with parsers in a table."""


def mutants_of(data, rng):
    """Yield the input and mutants with a few bytes changed or dropped."""
    yield data
    for _ in range(MUTANTS if data else 0):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(changed))
            if rng.random() < 0.3 and len(changed) > 1:
                del changed[at]
            else:
                changed[at] = rng.randrange(256)
        yield bytes(changed)


@pytest.mark.parametrize("name", TARGETS)
def test_no_seed_and_no_mutant_of_it_is_a_fault(name):
    check, seeds = TARGETS[name].load()
    assert seeds
    rng = Random(name)
    for seed in seeds:
        for data in mutants_of(seed, rng):
            check(data)


@pytest.mark.parametrize("kind", [*YAML_FILES.values(), *LOGS])
def test_seeds_of_files_are_right(kind, tmp_path):
    file = tmp_path / "seed.yaml"
    for seed in kind.seeds:
        file.write_bytes(seed)
        kind.read(file)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_parser_is_a_fault(name, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError

    place, seed = BROKEN[name]
    check, seeds = TARGETS[name].load()
    monkeypatch.setattr(f"tests.fuzzing.{TARGETS[name].module}.{place}", fail)
    with pytest.raises(ZeroDivisionError):
        check(seeds[seed])


def test_each_target_has_a_failing_parser():
    assert {*BROKEN, *IN_TABLES} == set(TARGETS)


def test_readers_that_disagree_are_a_fault(monkeypatch):
    check, seeds = TARGETS["kv_events"].load()
    other = seeds[4]
    scan = sys.modules[check.__module__].scan_payload
    monkeypatch.setattr(f"{check.__module__}.scan_payload", lambda _: scan(other))
    assert scan(other) is not None
    with pytest.raises(AssertionError):
        check(seeds[2])


def run(*words):
    command = [sys.executable, "-m", "tests.fuzzing", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False
    )


def test_the_list_names_every_target():
    done = run("--list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(TARGETS)
    assert run("nothing").returncode == 2


def test_a_few_inputs_are_tried(tmp_path):
    pytest.importorskip("atheris", reason="atheris is not installed (requirements/fuzz.lock)")
    done = run("texts", "--runs", "50", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no fault" in done.stdout
