"""Tests of `select-planner replay` from the command line."""

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from select_service.base.command_line import UsageError
from select_service.planner.config_loader import PlannerConfigError
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import Role, RoleReplicas, TickInput, TrafficWindow
from select_service.planner.planner_log_lines import SettingsLine, TickLine, encode_line
from select_service.planner.replay.replay_command import replay_command
from select_service.planner.wiring import build_deployment

CONFIG = """
selectors: [http://127.0.0.1:8092]
deployments:
  - name: chat
    model_name: llama
    mode: agg
    ttft_ms: 1000
    itl_ms: 60
    throughput_adjustment_interval_seconds: 60
    enable_load_scaling: true
    load_predictor: kalman
    decode_limits: {max_num_batched_tokens: 1024}
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Write a trace of ten minutes with two prompts a second."""
    path = tmp_path / "trace.jsonl"
    with path.open("w") as file:
        for at in range(1200):
            row = {
                "timestamp": 500 * at,
                "input_length": 2048,
                "output_length": 60,
                "hash_ids": [1, 4 * at + 2, 4 * at + 3, 4 * at + 4],
            }
            file.write(json.dumps(row) + "\n")
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "chat.yaml"
    path.write_text(CONFIG)
    return path


def test_profiles_side_by_side_and_twice_the_same_bytes(trace, config, tmp_path, capsys):
    report = tmp_path / "report.html"
    words = ["--trace", str(trace), "--config", str(config), "--least", "--report", str(report)]
    words += ["--profile", "ours", "--profile", "document", "--startup-secs", "30"]
    seen = []
    for _ in range(2):
        assert replay_command(words) == 0
        assert replay_command([*words, "--json"]) == 0
        seen.append((capsys.readouterr().out, report.read_bytes()))
    assert seen[0] == seen[1]
    table, page = seen[0]
    assert table.splitlines()[1].startswith("chat (ours)")
    assert table.splitlines()[2].startswith("chat (document)")
    found = json.loads(table[table.index("[") :])
    assert [each["outcome"]["requests"] for each in found] == [1200, 1200]
    assert found[0]["outcome"]["attainment"] > 0.9
    assert b"chat (document)" in page


def test_a_fleet_that_was_never_sized_gets_advice(trace, config, capsys):
    """An engine that is overloaded from the start shows no usable samples."""
    own = CONFIG.replace("enable_load_scaling: true", "enable_load_scaling: false")
    config.write_text(own.replace("interval_seconds: 60", "interval_seconds: 180"))
    words = ["--trace", str(trace), "--config", str(config), "--speedup", "10", "--hours", "0.1"]
    assert replay_command(words) == 0
    advice = capsys.readouterr().out.splitlines()[-1]
    assert advice.startswith("chat (ours): model_not_ready in all")
    assert "--replicas" in advice
    assert replay_command([*words, "--replicas", "8"]) == 0
    assert "model_not_ready" not in capsys.readouterr().out


def test_a_trace_repeats_for_the_requested_time(trace, config, capsys):
    words = ["--trace", str(trace), "--config", str(config), "--hours", "0.25", "--json"]
    assert replay_command(words) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["outcome"]["hours"], found["outcome"]["requests"]) == (0.25, 1800)


def a_log(path: Path) -> Path:
    settings = DeploymentSettings(
        mode="agg", load_predictor="kalman", throughput_adjustment_interval_seconds=60.0
    )
    deployment = build_deployment(settings, 100.0)
    begin = SettingsLine(deployment="chat", at_s=100.0, settings=settings, started_s=100.0)
    written = [encode_line(begin)]
    for at in range(1, 11):
        tick = TickInput(
            now_s=100.0 + 60.0 * at,
            replicas={Role.DECODE: RoleReplicas(ready=3)},
            traffic=TrafficWindow(duration_s=60.0, requests=0.0),
        )
        effects = deployment.run_tick(tick)
        line = TickLine(
            deployment="chat",
            tick=tick,
            scale_to=effects.scale_to,
            diagnostics=Raw(msgspec.json.encode(effects.diagnostics)),
        )
        written.append(encode_line(line))
    path.write_bytes(b"\n".join(written) + b"\n")
    return path


def test_plugins_are_named_and_not_called(trace, config, capsys):
    """The class does not exist, so a load would fail."""
    plugin = '{name: cost, stage: constrain, class: "no_such_module:A"}'
    config.write_text(f"{CONFIG}plugins: [{plugin}]\n")
    assert replay_command(["--trace", str(trace), "--config", str(config), "--hours", "0.05"]) == 0
    assert capsys.readouterr().err == "select-planner: plugins are not called in replays: cost\n"


def test_a_log_with_its_own_settings_and_with_others(tmp_path, config, capsys):
    log = a_log(tmp_path / "decisions.jsonl")
    assert replay_command(["--log", str(log)]) == 0
    assert "10 ticks, 10 the same, 0 differ" in capsys.readouterr().out
    log.write_bytes(log.read_bytes().replace(b'"requests":0.0', b'"requests":9.0', 1))
    assert replay_command(["--log", str(log)]) == 1
    assert replay_command(["--log", str(log), "--config", str(config), "--json"]) == 0
    assert "chat (ours)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "give either --log FILE or --trace FILE"),
        (["--log", "x", "--trace", "y"], "give either"),
        (["--log", "/nowhere"], "No such file"),
        (["--log", "x", "--report", "y"], "--report needs --trace"),
        (["--trace", "/dev/null"], "no requests"),
        (["--trace", "/dev/null", "--engine", "1,2"], "expected four numbers"),
        (["--trace", "/dev/null", "--speedup", "0"], "expected a number above 0"),
        (["--trace", "/dev/null", "--hours", "nan"], "expected a number above 0"),
        (["--trace", "/dev/null", "--engine", "1e-9,0,0,0"], "the first at least 1e-06"),
        (
            ["--trace", "/dev/null", "--report", "/nowhere/x"],
            "expected a file in an existing directory",
        ),
        (["--log", "/dev/null"], "the log has no tick"),
    ],
)
def test_wrong_arguments_are_one_line(words, fault):
    with pytest.raises(UsageError, match=fault) as raised:
        replay_command(words)
    assert "\n" not in str(raised.value)


def test_a_deployment_that_is_not_in_the_file(trace, config):
    with pytest.raises(PlannerConfigError, match="deployment `x` does not exist"):
        replay_command(["--trace", str(trace), "--config", str(config), "--deployment", "x"])


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--hours", "169"], "--hours: expected at most 168, got 169"),
        (["--speedup", "0.0001"], "--hours: expected at most 168, got 1666"),
        (["--replicas", "10001"], "--replicas: expected a whole number from 0 to 10000"),
        (["--config", "PROFILE"], "selected_prefill_interpolation"),
    ],
)
def test_excessive_values_and_missing_files_are_one_line(words, fault, trace, tmp_path):
    (tmp_path / "p.yaml").write_text(f"{CONFIG}    profile_results_dir: {tmp_path}\n")
    named = [str(tmp_path / "p.yaml") if each == "PROFILE" else each for each in words]
    with pytest.raises(UsageError, match=fault):
        replay_command(["--trace", str(trace), *named])


def test_a_broken_archive_and_deep_lines_are_one_line(trace, tmp_path):
    packed = bytearray(gzip.compress(trace.read_bytes()))
    packed[200:260] = b"\x55" * 60
    (tmp_path / "broken.jsonl.gz").write_bytes(packed)
    (tmp_path / "deep.jsonl").write_bytes(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n")
    (tmp_path / "far.jsonl").write_bytes(trace.read_bytes().replace(b"60,", b"1" * 400 + b",", 1))
    for name in ("broken.jsonl.gz", "deep.jsonl", "far.jsonl"):
        with pytest.raises(PlannerConfigError, match=f"{name}, line"):
            replay_command(["--trace", str(tmp_path / name)])


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b'"ttft_ms":500.0', b'"ttft_ms":0.0', "settings of `chat`: ttft_ms: expected more"),
        (
            b'"profile_results_dir":null',
            b'"profile_results_dir":"/nowhere"',
            "/nowhere: selected_prefill_interpolation",
        ),
        (
            b'"requests":0.0',
            b'"requests":5.0,"isl":9.0,"osl":9.0,"uncached_isl":{"means":[1.0],"counts":[]}',
            "tick of `chat` at 160",
        ),
        (b'"diagnostics":{', b'"diagnostics":' + b"[" * 100_000, "line 2"),
    ],
)
def test_a_log_that_no_planner_wrote_is_one_line(old, new, fault, tmp_path):
    log = a_log(tmp_path / "decisions.jsonl")
    log.write_bytes(log.read_bytes().replace(old, new))
    with pytest.raises(PlannerConfigError, match=fault):
        replay_command(["--log", str(log)])
