"""Tests that `deploy` requires keys or `insecure`, as Ray's selectors are open to the network.

Ray is not installed in the suite's environment; a fake is enough for the code before Ray is used.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.builders.launched_process import ROOT

PROGRAM = """
import json, sys
from unittest.mock import MagicMock
names = ("ray", "ray.exceptions", "ray.serve", "ray.serve.handle", "ray.serve.request_router")
sys.modules.update((name, MagicMock()) for name in names)
sys.modules["ray"].get.return_value = []
from select_service.ray import deploy
from select_service.ray.exposure import exposing_flags
said = []
for given in json.load(sys.stdin):
    try:
        deploy(2, **given)
        said.append(exposing_flags(given.get("flags", ()), given.get("environment", {})))
    except ValueError as error:
        said.append(str(error))
    assert sys.modules["ray"].init.called == isinstance(said[-1], list)
    sys.modules["ray"].reset_mock()
    sys.modules["ray"].is_initialized.return_value = False
json.dump(said, sys.stdout)
"""
KEYS = ["--api-keys-file", "/etc/keys.toml"]
VARIABLE = {"SELECT_SERVICE_API_KEYS_FILE": "/etc/keys.toml"}
OPEN = ["--host", "0.0.0.0", "--insecure", "--replica-sync-insecure"]
WITH_KEYS = ["--host", "0.0.0.0", "--replica-sync-insecure"]
CASES: dict[str, tuple[dict[str, Any], str | list[str]]] = {
    "nothing": ({}, 'deploy(flags=("--api-keys-file", FILE), api_key_file=FILE)'),
    "a key but none asked for": ({"api_key_file": "/key"}, "deploy(insecure=True)"),
    "meant": ({"insecure": True}, OPEN),
    "meant by its flag": ({"flags": ["--insecure"]}, WITH_KEYS),
    "keys": ({"flags": KEYS, "api_key_file": "/key"}, WITH_KEYS),
    "keys in one word": ({"flags": ["=".join(KEYS)], "api_key_file": "/key"}, WITH_KEYS),
    "keys by a variable": ({"environment": VARIABLE, "api_key_file": "/key"}, WITH_KEYS),
    "keys that nobody shows": ({"flags": KEYS}, "needs api_key_file"),
    "both": ({"flags": KEYS, "api_key_file": "/key", "insecure": True}, "contradict"),
    "keys of replicas": (
        {"flags": [*KEYS, "--replica-keys-file", "/r"], "api_key_file": "/key"},
        ["--host", "0.0.0.0"],
    ),
}


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """Return the result of each case: the flags of the service, or the error."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        input=json.dumps([given for given, _ in CASES.values()]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_selectors_are_open_only_on_request(results: dict[str, Any], case: str) -> None:
    expected = CASES[case][1]
    if isinstance(expected, str):
        assert isinstance(results[case], str)
        assert expected in results[case]
    else:
        assert results[case] == expected
