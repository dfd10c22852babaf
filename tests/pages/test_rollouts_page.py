"""Tests that the program of docs/guides/reinforcement-learning.md runs against the service."""

import asyncio
import re
from pathlib import Path

import pytest

from tests.builders import worker_body
from tests.builders.in_thread import InThread

PAGE = (Path(__file__).parents[2] / "docs/guides/reinforcement-learning.md").read_text()
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
BLOCK = 16
PROMPTS = [list(range(first, first + 4 * BLOCK)) for first in (0, 1000)]


@pytest.fixture
def service():
    with InThread(environment={"DYN_USE_KV_EVENTS": "false"}) as service:
        for worker_id in (1, 2):
            body = worker_body(worker_id, model_name="qwen", block_size=BLOCK, total_kv_blocks=1000)
            assert service.call("POST", "/workers", body).status == 201
        yield service


def load_program(service):
    text = PROGRAM.replace("http://selector-a:8092", f"http://127.0.0.1:{service.port}")
    names = {}
    exec(compile(text, "docs/guides/reinforcement-learning.md", "exec"), names)
    return names


def cached_blocks(service, salt):
    """Return how many blocks of the first prompt ranks hold under a salt, by worker."""
    query = {"model_name": "qwen", "token_ids": PROMPTS[0], "cache_salt": salt}
    rows = service.call("POST", "/overlap_scores", query).body["workers"]
    return {row["worker_id"]: row["device_blocks"] for row in rows}


@pytest.mark.process
def test_the_program_of_the_page_runs_a_step_and_updates_the_weights(service):
    names, seen, loaded = load_program(service), [], []

    async def generate(lease, tokens, salt):
        seen.append((lease.worker_id, len(tokens), salt))
        lease.tokens(3)
        await asyncio.sleep(0.01)
        return [7] * BLOCK

    async def load(worker):
        loaded.append(worker.worker_id)

    async def run():
        async with names["selector"]:
            samples = await names["run_step"](PROMPTS, 4, 3, 8, generate)
            await asyncio.sleep(0.2)
            await names["update_weights"](load)
            return samples

    samples = asyncio.run(run())
    assert [len(tokens) for tokens in samples] == [7 * BLOCK] * 8
    assert len(seen) == 8 * 3
    assert {salt for _, _, salt in seen} == {"weights-8"}
    assert {worker_id for worker_id, _, _ in seen} == {1, 2}
    assert sorted(loaded) == [1, 2]
    assert service.call("GET", "/reservations").body["total"] == 0


@pytest.mark.process
def test_an_update_of_the_weights_drops_assumed_blocks(service):
    names = load_program(service)

    async def generate(lease, tokens, salt):
        lease.tokens(1)
        return [7]

    async def run(load):
        async with names["selector"]:
            await names["run_step"](PROMPTS, 1, 1, 8, generate)
            before = cached_blocks(service, "weights-8"), cached_blocks(service, "weights-9")
            await names["update_weights"](load)
            await asyncio.sleep(0.5)
            return before

    async def load(worker):
        return None

    same, other = asyncio.run(run(load))
    assert max(same.values(), default=0) == 4
    assert max(other.values(), default=0) == 0
    assert max(cached_blocks(service, "weights-8").values(), default=0) == 0
