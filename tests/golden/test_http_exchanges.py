"""Tests of every golden exchange against a whole service, with real event sockets."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.builders.in_thread import InThread
from tests.builders.running import complaint
from tests.builders.service_process import run_to_end
from tests.golden import deviations, exchanges
from tests.golden.exchanges import Side
from tests.golden.scenario_player import play_scenario

pytestmark = pytest.mark.process

PATHS = {"fast": (), "ordinary": ("--no-fast-path",)}
PLAYED = [name for name in exchanges.VERSIONS if name not in deviations.NO_START]


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("scenario", PLAYED)
def test_answers_are_those_of_the_reference_except_where_listed(
    scenario, path, zmq_context, tmp_path
):
    own_flags = deviations.own_flags(scenario)

    def start(flags: tuple[str, ...], environment: Mapping[str, str]) -> Any:
        every = ("--policy", "reference", *flags, *own_flags, *path)
        return InThread(*every, folder=tmp_path, environment=environment)

    found, ports = play_scenario(scenario, start, Side.OURS, zmq_context, tmp_path)
    complaints = deviations.unexpected(scenario, found, ports=ports)
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("scenario", deviations.NO_START)
def test_refused_settings_of_the_reference_end_the_start(scenario, tmp_path):
    head, _ = exchanges.read(scenario)
    entry = deviations.NO_START[scenario]
    exchanges.write_policy_file(head, tmp_path)
    status, errors = run_to_end(head["environment"], tuple(head["flags"]), tmp_path)
    assert (status, complaint(errors)) == (entry["status"], entry["error"])
