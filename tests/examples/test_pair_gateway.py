"""Tests of the surviving gateway with separate prefill and decode when engines are lost."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any, NamedTuple

import pytest

from tests.builders.launched_process import own_environment
from tests.builders.polling import PATIENCE_S, eventually, eventually_on_loop
from tests.builders.running import Reached, Running
from tests.examples.gateway_scenes import (
    EXAMPLES,
    TOKENS,
    Engine,
    Gateway,
    Reader,
    Scene,
    scene_of,
)
from tests.examples.token_engine import generated, text_of

pytestmark = pytest.mark.process

CLIENTS = 32
HELD_AFTER = 8
SPEED = {"prefill_tokens_per_s": 33_000.0}


class SplitFleet(NamedTuple):
    prefills: tuple[Engine, Engine]
    decodes: tuple[Engine, Engine]


@pytest.fixture(scope="module")
def service() -> Iterator[Reached]:
    with Running("--threads", "1", "--policy", "work") as service:
        yield service


@pytest.fixture(scope="module")
def gateway(service: Reached) -> Iterator[Gateway]:
    with Gateway(service, "--pairs", "never") as gateway:
        yield gateway


@pytest.fixture
def fleet(service: Reached) -> Iterator[SplitFleet]:
    with ExitStack() as stack:

        def engine(host: str, role: str, *flags: str) -> Engine:
            transfer = {"kind": "nixl", "host": host, "link_gbps": 100.0}
            fields = {**SPEED, "role": role, "kv_transfer": transfer}
            return stack.enter_context(Engine(service, *flags, **fields))

        prefills = engine("a", "prefill"), engine("b", "prefill")
        decodes = engine("c", "decode", "--no-prefill"), engine("d", "decode", "--no-prefill")
        yield SplitFleet(prefills, decodes)


async def transfers(scene: Scene, engine: Engine) -> dict[str, int]:
    async with scene.http.get(f"{engine.url}/transfers") as answer:
        found: dict[str, int] = await answer.json()
        return found


async def no_load(scene: Scene) -> bool:
    loads = (await scene.ask("GET", "/loads"))[0]["loads"]
    return all(
        not row["potential_prefill_tokens"] and not row["potential_decode_blocks"] for row in loads
    )


def prompt_of(n: int) -> list[int]:
    return [n, *range(60 + n % 7)]


async def test_every_answer_is_computed_by_two_engines(service, gateway, fleet):
    async with scene_of(service) as scene:
        readers = [Reader(prompt_of(n)) for n in range(CLIENTS)]
        await asyncio.gather(*(reader.read(scene.http, gateway) for reader in readers))
        for reader in readers:
            reader.check()
        computed = [(await transfers(scene, each))["computed"] for each in fleet.prefills]
        fetched = [(await transfers(scene, each))["fetched"] for each in fleet.decodes]
        assert sum(computed) == sum(fetched) == CLIENTS
        assert all((*computed, *fetched))
        await scene.until_freed()


async def test_an_engine_of_each_role_is_killed_and_no_stream_is_lost(
    service, gateway, fleet, capsys
):
    async with scene_of(service) as scene:
        await scene.control(fleet.prefills[0], "hold", after=0)
        for engine in fleet.decodes:
            await scene.control(engine, "hold", after=HELD_AFTER)
        readers = [Reader(prompt_of(n)) for n in range(CLIENTS)]
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.read(scene.http, gateway))

            async def has_stuck_prefills() -> bool:
                begun = sum(bool(reader.tokens) for reader in readers)
                held = await scene.booked(fleet.prefills[0])
                return 0 < held == CLIENTS - begun

            await scene.until(has_stuck_prefills)
            moved = await scene.booked(fleet.prefills[0])
            fleet.prefills[0].kill()
            killed_at = time.monotonic()
            await eventually_on_loop(lambda: all(reader.tokens for reader in readers))
            prefill_s = time.monotonic() - killed_at

            lost = await scene.streams(fleet.decodes[0])
            fleet.decodes[0].kill()
            killed_at = time.monotonic()
            await scene.control(fleet.decodes[1], "go")
        decode_s = time.monotonic() - killed_at
        assert moved > 0
        assert 0 < lost < CLIENTS
        for reader in readers:
            reader.check()
        await scene.until_freed()
        await scene.until(lambda: no_load(scene))
        # The engines that live have computed and fetched all lost states.
        assert (await transfers(scene, fleet.prefills[1]))["computed"] >= CLIENTS + lost - moved
    with capsys.disabled():
        print(
            f"\npairs: {CLIENTS} streams, 0 lost; prefill engine killed: {moved} legs moved, all "
            f"begun after {prefill_s:.2f} s; decode engine killed: {lost} streams continued by new "
            f"pairs, all ended after {decode_s:.2f} s"
        )


def run_pair(service: Reached, prompt: list[int]) -> dict[str, Any]:
    """Return the output of the small example."""
    where = ("--selector", f"http://127.0.0.1:{service.port}", "--model", "m")
    command = (sys.executable, str(EXAMPLES / "pair.py"), *where, "--local", "never")
    done = subprocess.run(
        (*command, "--max-tokens", str(TOKENS), *map(str, prompt)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=own_environment({}),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_small_example_uses_both_engines_and_replaces_one_that_is_gone(service, fleet):
    prefills = {each.worker_id for each in fleet.prefills}
    right = text_of(islice(generated([1, 2, 3]), TOKENS))
    found = run_pair(service, [1, 2, 3])
    assert found["prefill"] in prefills
    assert found["decode"] in {each.worker_id for each in fleet.decodes}
    assert found["text"] == right
    # Whichever is chosen first, one of a few runs begins at the engine that is gone.
    fleet.prefills[0].kill()
    for _ in range(4):
        found = run_pair(service, [1, 2, 3])
        assert found["prefill"] == fleet.prefills[1].worker_id
        assert found["text"] == right
    eventually(lambda: service.call("GET", "/reservations").body["total"] == 0)
