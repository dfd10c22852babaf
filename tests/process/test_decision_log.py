"""Tests of a service with a decision log: with and without the fast path, and rejected settings."""

import msgspec
import pytest

from select_service.config.settings_loader import ConfigError, parse_config
from select_service.core.analysis.decision_log import parse_hashes
from select_service.core.analysis.decision_log_lines import LoggedDecision, LogLine
from tests.builders import worker_body
from tests.builders.in_thread import InThread
from tests.builders.polling import eventually


def decisions_in(path):
    lines = [msgspec.json.decode(line, type=LogLine) for line in path.read_bytes().splitlines()]
    return [line for line in lines if isinstance(line, LoggedDecision)]


def metrics_of(service):
    return service.call("GET", "/metrics").body.decode()


@pytest.mark.parametrize("flags", [[], ["--no-fast-path"], ["--policy", "reference"]])
def test_decisions_are_in_the_file_with_their_ends(tmp_path, flags):
    path = tmp_path / "log.jsonl"
    with InThread("--decision-log", str(path), *flags) as service:
        assert service.call("POST", "/workers", worker_body()).status == 201
        body = {"model_name": "m", "token_ids": list(range(200))}
        for name in ("a", "b"):
            asked = body | {"reservation_id": name}
            assert service.call("POST", "/select_and_reserve", asked).status == 200
        eventually(lambda: 'steps_total{task="decision_log"} 0.0' not in metrics_of(service))
        assert service.call("POST", "/reservations/a/output_block", {}).status == 200
        assert 'decision_log_lost_total{reason="missed"} 0.0' in metrics_of(service)
    first, second = sorted(decisions_in(path), key=lambda line: line.decision)
    assert first.hashes == second.hashes
    assert len(parse_hashes(first.hashes)) == 200 // 64
    assert (first.isl_tokens, first.worker_id, first.reserved) == (200, 1, True)
    assert first.output_tokens == first.block_size
    assert second.output_tokens is None


def test_impossible_settings_stop_the_start(tmp_path):
    with pytest.raises(ConfigError, match="--decision-log requires --decisions"):
        parse_config(["--decision-log", "x", "--decisions", "0"], {})
    with pytest.raises(
        ConfigError, match=r"--decision-log: cannot write `.*`: not a regular file but a directory"
    ):
        InThread("--decision-log", str(tmp_path))


def test_without_a_log_there_is_no_task_and_no_series():
    with InThread() as service:
        assert "decision_log" not in metrics_of(service)
