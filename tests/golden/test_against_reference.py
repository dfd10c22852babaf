"""Tests of the golden exchanges against the reference itself: the files must match its answers.

The tests run only where SELECT_SERVICE_REFERENCE_PYTHON names a Python that has ai-dynamo-runtime,
and play the files of that version.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from tests.builders.launched_process import LaunchedProcess, free_port, plain_environment
from tests.builders.reference_python import NEEDS_REFERENCE, PYTHON, VERSION
from tests.golden import exchanges
from tests.golden.exchanges import Side
from tests.golden.scenario_player import play_scenario

pytestmark = NEEDS_REFERENCE


class Running(NamedTuple):
    port: int


@pytest.mark.parametrize("scenario", exchanges.FILES.get(VERSION, {}))
def test_the_reference_answers_as_in_the_file(scenario, zmq_context, tmp_path):
    @contextlib.contextmanager
    def start(flags: tuple[str, ...], environment: Mapping[str, str]) -> Iterator[Any]:
        port = free_port()
        command = (str(PYTHON), "-m", "dynamo.select_service", "--port", str(port), *flags)
        variables = {**plain_environment(), **environment}
        launched = LaunchedProcess(command, variables, port, folder=tmp_path)
        launched.wait_until_healthy()
        try:
            yield Running(port)
        finally:
            launched.kill()

    played = play_scenario(scenario, start, Side.REFERENCE, zmq_context, tmp_path)
    assert played.differences == {}


def test_there_are_files_of_the_version():
    assert VERSION in exchanges.FILES, f"no exchanges were recorded with {VERSION}"
