"""`select-service replay`: the report, its picture, and what it refuses."""

import xml.etree.ElementTree as ElementTree

import msgspec
import pytest

from select_service.__main__ import main
from select_service.sim.replay.policy_replay_command import REQUESTS_MAX
from tests.sim.replay.log_lines import a_decision, a_fleet, write

POLICIES = ("work", "reference", "round-robin", "work+strict-tail")


def a_log(path, n=40):
    """Everybody asks with the same beginning of 20 hashes, now and then."""
    decisions = [
        a_decision(k, k / 20, [*range(1, 21), 1000 + k], 21 * 64 + 5, 64) for k in range(n)
    ]
    return write(path, [a_fleet(4), *decisions])


@pytest.mark.parametrize("name", ["report.svg", "report.html"])
def test_each_policy_has_a_row_and_a_bar(tmp_path, capsys, name):
    out = tmp_path / name
    wanted = [word for policy in POLICIES for word in ("--policy", policy)]
    log = a_log(tmp_path / "log")
    assert main(["replay", "--log", str(log), *wanted, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "Replay: m, tenant t" in shown
    assert "40 requests from 1970-01-01 00:00:00 UTC on" in shown
    table = [line for line in shown.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in table[2:]] == [f"| {policy}" for policy in POLICIES]
    text = out.read_text()
    assert all(policy in text for policy in POLICIES)
    if name.endswith(".svg"):
        assert ElementTree.fromstring(text).tag.endswith("svg")


def test_a_policy_that_looks_at_caches_finds_more_in_them(tmp_path, capsys):
    """Fifteen beginnings on four ranks, in turns."""
    decisions = [
        a_decision(k, k / 4, [*range(k % 15 * 50, k % 15 * 50 + 50), 10**6 + k], 51 * 64, 64)
        for k in range(100)
    ]
    log = write(tmp_path / "log", [a_fleet(4), *decisions])
    policies = ["--policy", "work", "--policy", "round-robin"]
    assert main(["replay", "--log", str(log), *policies]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    work, turns = (float(line.split(" | ")[4].rstrip("%")) for line in lines[2:])
    assert work > turns + 10.0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no decision with a reservation"),
        (b"hello\n", "line 1: JSON is malformed"),
        (b'{"kind":"log","format":"select-service decisions","version":2}\n', "line 1: "),
        (
            b'{"kind":"fleet","model_name":"m","tenant_id":"t","block_size":4,"ranks":[]}\n',
            "not a decision log",
        ),
        (b'{"kind":"log"}\n{"kind":"decision"}\n', "line 2: "),
        (b"x" * (2 << 20), "line 1: "),
    ],
)
def test_a_bad_file_is_told_in_one_line(tmp_path, capsys, content, reason):
    path = tmp_path / "log"
    path.write_bytes(content)
    assert main(["replay", "--log", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("select-service: error: ")
    assert reason in line


@pytest.mark.parametrize(
    "fields",
    [
        {"hashes": "zz"},
        {"hashes": "12"},
        {"hash_blocks": 0},
        {"block_size": 0},
        {"at": 1e300},
        {"waited_s": 2.0},
        {"isl_tokens": 2**40},
        {"isl_tokens": 0},
        {"output_tokens": -1},
    ],
)
def test_numbers_that_no_service_writes_are_refused(tmp_path, capsys, fields):
    line = msgspec.structs.replace(a_decision(1, 1.0, [], 100), **fields)
    path = write(tmp_path / "log", [a_fleet(), line])
    assert main(["replay", "--log", str(path)]) == 2
    assert ", line 3: " in capsys.readouterr().err


def test_a_missing_file_and_an_unknown_model_are_told(tmp_path, capsys):
    assert main(["replay", "--log", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
    log = a_log(tmp_path / "log")
    assert main(["replay", "--log", str(log), "--model", "other"]) == 2
    assert "no decision with a reservation of this model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--policy", "wrk"], "did you mean `work`"),
        (["--policy", "reference+strict-tail"], "has no options"),
        (["--policy", "work:strict-tail"], "the policies are"),
        (["--out", "x.png"], "ends in .html or .svg"),
        (["--requests", str(REQUESTS_MAX + 1)], "expected a whole number from 1 to"),
        (["--speed", "-1"], "expected a number above 0, got `-1`"),
        (["--speed", "0"], "expected a number above 0, got `0`"),
        (["--speed", "x"], "expected a number above 0, got `x`"),
        (["--gpu", "b200"], "expected one of a100-40, a100-80, h100-80, got `b200`"),
        (["--seed", "x"], "expected a whole number from 0 to"),
        (["--out", "/no/such/directory/x.svg"], "an existing directory"),
    ],
)
def test_wrong_arguments_are_told(tmp_path, capsys, flags, reason):
    assert main(["replay", "--log", "x", *flags]) == 2
    assert reason in capsys.readouterr().err
