"""Tests that the programs of the page about Ray work with a real service as described."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.in_thread import InThread

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def observations():
    with InThread(environment={}) as service:
        command = [
            sys.executable,
            "-m",
            "tests.pages.ray_programs",
            f"http://127.0.0.1:{service.port}",
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_client_passes_adapter_salt_and_rank(observations):
    urls, ranks, bodies = zip(*observations["answers"], strict=True)
    assert set(urls) == {"http://vllm-0:8000/v1/completions"}
    assert set(ranks) <= {"0", "1"}
    assert [body["model"] for body in bodies] == ["qwen", "poems"]
    assert [body["cache_salt"] for body in bodies] == [None, "red"]
    assert observations["reservations"] == 0


def test_the_follower_registers_an_actor(observations):
    assert observations["followed"]["endpoint"] == "http://10.0.0.7:8000"


def test_each_replica_has_endpoints_of_its_own(observations):
    assert observations["router"] == "select_service.ray.router:SelectServiceRouter"
    assert len(observations["replicas"]) == 2
    endpoints = [
        each[name]
        for each in observations["replicas"]
        for name in ("kv_events_endpoint", "replay_endpoint")
    ]
    assert len(set(endpoints)) == 4


def test_the_hook_exists(observations):
    assert observations["hook"]
