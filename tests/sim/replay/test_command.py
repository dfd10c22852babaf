"""Tests of `select-service replay`: report, chart and rejected arguments."""

import xml.etree.ElementTree as ElementTree

import msgspec
import pytest

from select_service.__main__ import main
from select_service.sim.replay.pair_replay import PairFigures, judge_splits
from select_service.sim.replay.policy_replay_command import REQUESTS_MAX
from tests.builders.request_traces import call, chat, session, write_lines
from tests.sim.replay.log_lines import a_decision, a_fleet, write

POLICIES = ("work", "reference", "round-robin", "work+strict-tail")


def a_log(path, n=40):
    """Write a log of `n` requests, 20 per second, that share a prefix of 20 hashes."""
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
    """The log has fifteen prefixes in turn on four ranks."""
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
def test_a_bad_file_is_a_one_line_error(tmp_path, capsys, content, reason):
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


def test_a_missing_file_and_an_unknown_model_are_errors(tmp_path, capsys):
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
def test_wrong_arguments_are_errors(tmp_path, capsys, flags, reason):
    assert main(["replay", "--log", "x", *flags]) == 2
    assert reason in capsys.readouterr().err


def a_long_and_short_log(path, n=300, per_s=20.0):
    """Write a log in which every eighth prompt is long and no two prompts share text."""
    decisions = [
        a_decision(k, k / per_s, [], 12_000 if k % 8 == 0 else 300, 40 if k % 8 == 0 else 120)
        for k in range(n)
    ]
    return write(path, [a_fleet(8), *decisions])


def rows_of(shown):
    table = [line.strip("| ").split(" | ") for line in shown.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in table[2:]}


def test_splits_are_compared_with_all_ranks_together(tmp_path, capsys):
    log = a_long_and_short_log(tmp_path / "log")
    arguments = ["replay", "--log", str(log), "--pairs", "2:6,4:4", "--gpu", "h100-80"]
    assert main([*arguments, "--link-gbps", "400"]) == 0
    shown = capsys.readouterr().out
    rows = rows_of(shown)
    assert list(rows) == ["8 together", "2:6", "4:4"]
    assert rows["8 together"][4:] == ["-", "-", "-"]
    for name in ("2:6", "4:4"):
        ttft, p99, itl, goodput = (float(each) for each in rows[name][:4])
        assert 0.0 < ttft < p99
        assert itl > 0.0
        assert goodput > 0.0
        assert 0.0 < float(rows[name][5]) < 12_000
        assert 0 <= int(rows[name][4].rstrip("%")) < 100
    assert "**Splitting " in shown
    assert main([*arguments, "--link-gbps", "1"]) == 0
    slow = rows_of(capsys.readouterr().out)
    assert float(slow["2:6"][5]) < float(rows["2:6"][5]), "fewer tokens move over slow links"
    assert slow["8 together"] == rows["8 together"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--pairs", "4"], "splits like 4:12,6:10"),
        (["--pairs", "0:4"], "splits like 4:12,6:10"),
        (["--pairs", "1:2:1"], "splits like 4:12,6:10"),
        (["--pairs", ",".join(f"{k}:1" for k in range(1, 10))], "up to 8 splits"),
        (["--pairs", "2:3"], "5 ranks, but the fleet has 4"),
        (["--pairs", "2:2", "--policy", "work"], "not together with --policy"),
        (["--pairs", "2:2", "--link-gbps", "0"], "expected a number above 0"),
        (["--pairs", "2:2", "--ranks-per-host", "0"], "expected a whole number from 1"),
    ],
)
def test_wrong_splits_are_refused(tmp_path, capsys, flags, reason):
    log = a_log(tmp_path / "log")
    assert main(["replay", "--log", str(log), *flags]) == 2
    assert reason in capsys.readouterr().err


def figures(goodput, is_bound=False):
    return PairFigures(1.0, 2.0, 0.01, 0.5, 10.0, 0.1, goodput, is_bound)


@pytest.mark.parametrize(
    ("together", "split", "verdict"),
    [
        (1.0, 1.2, "Splitting pays"),
        (1.0, 1.04, "Splitting makes no difference"),
        (1.0, 0.97, "Splitting makes no difference"),
        (1.0, 0.5, "Splitting does not pay"),
        (0.0, 0.0, "No fleet keeps the goals"),
        (0.0, 0.3, "Splitting pays"),
    ],
)
def test_the_verdict_follows_from_the_goodput(together, split, verdict):
    found = {"16 together": figures(together), "4:12": figures(split / 2), "8:8": figures(split)}
    said = judge_splits(found)
    assert said.startswith(f"**{verdict}")
    assert (split == 0.0) or "8:8" in said


def test_a_log_without_load_decides_nothing():
    found = {"4 together": figures(9.0, True), "2:2": figures(9.0, True)}
    assert "does not load the fleet" in judge_splits(found)


def a_bailian_trace(path):
    """Write a trace of fifteen prefixes of 50 blocks of 64 tokens in turn, with unique ends."""
    rows = [
        chat(k, -1, k / 4, [*range(k % 15 * 200, k % 15 * 200 + 200), 10**6 + k])
        for k in range(100)
    ]
    return write_lines(path, *rows)


def test_a_trace_is_replayed_on_the_given_ranks(tmp_path, capsys):
    trace = a_bailian_trace(tmp_path / "qwen.jsonl")
    policies = ["--policy", "work", "--policy", "round-robin"]
    assert main(["replay", "--trace", str(trace), "--ranks", "4", *policies]) == 0
    shown = capsys.readouterr().out
    assert "# Replay: qwen.jsonl" in shown
    assert "100 requests of a Bailian trace, in 24.8 s" in shown
    assert "simulated: 4 ranks" in shown
    lines = [line for line in shown.splitlines() if line.startswith("| ")]
    work, turns = (float(line.split(" | ")[4].rstrip("%")) for line in lines[2:])
    assert work > turns + 10.0


def test_a_folder_of_sessions_is_replayed_also_with_pairs(tmp_path, capsys):
    for number in range(3):
        ids = list(range(20))
        calls = [call(4.0 * turn, [*ids, 100 + turn]) for turn in range(5)]
        write_lines(tmp_path / f"{number}.json", session(*calls))
    words = ["replay", "--trace", str(tmp_path), "--ranks", "2"]
    assert main([*words, "--requests", "12"]) == 0
    shown = capsys.readouterr().out
    assert "12 requests of a Weka trace, whose sessions are taken to begin 10 s apart" in shown
    assert main([*words, "--pairs", "1:1"]) == 0
    assert "2 together" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "give either --log FILE or --trace FILE"),
        (["--log", "LOG", "--trace", "TRACE"], "give either --log FILE or --trace FILE"),
        (["--trace", "TRACE", "--model", "m"], "--model and --tenant need --log"),
        (["--log", "LOG", "--ranks", "4"], "--ranks needs --trace"),
        (["--trace", "TRACE", "--ranks", "0"], "--ranks: expected"),
        (["--trace", "LOG"], "line 1: expected a request of a Mooncake or Bailian trace"),
        (["--trace", "NONE"], "No such file or directory"),
    ],
)
def test_wrong_words_about_a_trace(tmp_path, capsys, words, reason):
    files = {"LOG": a_log(tmp_path / "LOG"), "TRACE": a_bailian_trace(tmp_path / "TRACE")}
    given = [str(files.get(word, tmp_path / word if word.isupper() else word)) for word in words]
    assert main(["replay", *given]) == 2
    assert reason in capsys.readouterr().err
