"""Tests of the example of a gateway: the clients do not notice the loss of engines."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

import pytest

from tests.builders.launched_process import LaunchedProcess, free_port, own_command, own_environment
from tests.builders.polling import PATIENCE_S, eventually_on_loop
from tests.builders.running import Reached, Running
from tests.examples.gateway_scenes import (
    TOKENS,
    Engine,
    Gateway,
    Reader,
    Scene,
    scene_of,
    two_engines,
)
from tests.examples.token_engine import generated, ids_of, text_of

pytestmark = pytest.mark.process

HEALTH = (
    "--health-checks=on",
    "--health-interval-secs=0.2",
    "--health-confirm-secs=0.1",
    f"--health-timeout-secs={PATIENCE_S}",
    "--health-reporters=nobody",  # a gateway elsewhere counts by its reservations alone
)
LONG = f"--stall-secs={PATIENCE_S}", f"--first-token-secs={PATIENCE_S}"
CLIENTS = 64
HELD_AFTER = 8
"""Tokens after which answers stop, so that no answer is complete however slow the rest is."""


@pytest.fixture(scope="module")
def service() -> Iterator[Reached]:
    with Running("--threads", "1", *HEALTH) as service:
        yield service


@pytest.fixture(scope="module")
def gateway(service: Reached) -> Iterator[Gateway]:
    with Gateway(service, *LONG) as gateway:
        yield gateway


@pytest.fixture
def engines(service: Reached) -> Iterator[tuple[Engine, Engine]]:
    with two_engines(service) as engines:
        yield engines


@pytest.fixture(scope="module")
def lasting_engines(service: Reached) -> Iterator[tuple[Engine, Engine]]:
    with two_engines(service) as engines:
        for engine in engines:
            engine.leave()
        yield engines


@pytest.fixture
def live_engines(lasting_engines: tuple[Engine, Engine]) -> Iterator[tuple[Engine, Engine]]:
    """Return engines that outlive a test."""
    for engine in lasting_engines:
        engine.recover()
        engine.register()
    yield lasting_engines
    for engine in lasting_engines:
        engine.leave()


Event = Callable[[Scene, Engine], Coroutine[Any, Any, None]]


def prompt_of(n: int) -> list[int] | str:
    """Return a prompt, every eighth so long that a moved cache is faster than computing again."""
    return f"prompt {n} " * 20 if n % 8 == 0 else [n, *range(40 + n % 7)]


async def in_the_middle(
    scene: Scene, gateway: Gateway, engines: tuple[Engine, Engine], event: Event, held: int
) -> None:
    """Let many clients read from both engines, then apply the event to the first engine.

    held: number of engines with answers that stop in the middle until then
    """
    for engine in engines[:held]:
        await scene.control(engine, "hold", after=HELD_AFTER)
    readers = [Reader(prompt_of(n)) for n in range(CLIENTS)]
    async with asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.read(scene.http, gateway))
        await eventually_on_loop(lambda: all(reader.tokens for reader in readers))
        assert await scene.booked(engines[0]) > 0
        await event(scene, engines[0])
        await scene.control(engines[1], "go")
    for reader in readers:
        reader.check()
    await scene.until_freed()


async def killed(scene: Scene, engine: Engine) -> None:
    engine.kill()


async def hanging(scene: Scene, engine: Engine) -> None:
    os.kill(engine.process.pid, signal.SIGSTOP)


async def moves_of(scene: Scene) -> list[Any]:
    events: list[Any] = (await scene.ask("GET", "/migrations"))["events"]
    return events


async def play(
    service: Reached, gateway: Gateway, engines: tuple[Engine, Engine], event: Event, held: int = 2
) -> list[Any]:
    """Return the events of moves during the scene."""
    async with scene_of(service) as scene:
        before = len(await moves_of(scene))
        await in_the_middle(scene, gateway, engines, event, held)
        return (await moves_of(scene))[before:]


def test_an_engine_that_is_killed_is_survived_by_the_moves_of_the_service(service, engines):
    with Gateway(service, *LONG, f"--move-secs={PATIENCE_S}") as gateway:
        moves = asyncio.run(play(service, gateway, engines, killed))
    first, second = (engine.worker_id for engine in engines)
    assert moves
    assert {move["from"]["worker_id"] for move in moves} == {first}
    assert {move["to"]["worker_id"] for move in moves} == {second}


def test_an_engine_that_is_killed_is_survived_by_new_reservations(service, engines):
    with Gateway(service, *LONG, "--move-secs=0") as gateway:
        asyncio.run(play(service, gateway, engines, killed))


def test_an_engine_that_hangs_is_survived(service, engines):
    with Gateway(service, "--stall-secs=5", LONG[1]) as gateway:
        asyncio.run(play(service, gateway, engines, hanging, held=1))


async def drain_and_leave(scene: Scene, engine: Engine) -> None:
    await scene.ask("POST", f"/workers/{engine.worker_id}/drain")

    async def has_no_requests() -> bool:
        return await scene.booked(engine) == await scene.streams(engine) == 0

    await scene.until(has_no_requests)


CACHE = {"layers": 1, "kv_heads": 1, "head_dim": 1}


@pytest.mark.parametrize(
    ("method", "fields"),
    [("reprefill", {}), ("transfer", {"kv_layout": CACHE, "kv_transfer_domain": "one"})],
)
def test_answers_leave_a_worker_that_an_operator_drains(service, gateway, method, fields):
    with two_engines(service, **fields) as engines:
        moves = asyncio.run(play(service, gateway, engines, drain_and_leave))
    assert {(move["cause"], move["method"]) for move in moves} == {("operator", method)}


async def read_all(scene: Scene, gateway: Gateway) -> None:
    readers = [Reader(prompt_of(n)) for n in range(16)]
    await asyncio.gather(*(reader.read(scene.http, gateway) for reader in readers))
    for reader in readers:
        reader.check()
    await scene.until_freed()


async def test_an_engine_that_is_not_there_is_not_noticed(service, engines, gateway):
    engines[0].kill()
    async with scene_of(service) as scene:
        await read_all(scene, gateway)


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 500},
        {"status": 503},
        {"after": 0, "by": "error"},
        {"after": HELD_AFTER, "by": "error"},
        {"after": HELD_AFTER, "by": "abort"},
        {"after": HELD_AFTER, "by": "nothing"},
    ],
    ids=str,
)
async def test_an_engine_that_reports_a_failure_is_not_noticed(
    service, live_engines, gateway, fault
):
    async with scene_of(service) as scene:
        await scene.control(live_engines[0], "fail", **fault)
        await read_all(scene, gateway)


async def test_a_client_gets_the_refusal_of_the_engine(service, live_engines, gateway):
    async with scene_of(service) as scene:
        for engine in live_engines:
            await scene.control(engine, "fail", status=400)
        async with scene.http.post(gateway.url, json={"prompt": [1]}) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["message"] == "failing"
        await scene.until_freed()


def test_a_restart_of_the_service_is_not_noticed():
    """The service has no state of the running streams, and later learns of an engine's death."""
    port = free_port()
    place = ("--host", "127.0.0.1", "--port", str(port), "--threads", "1")

    def begun() -> LaunchedProcess:
        environment = own_environment(
            {"DYN_USE_KV_EVENTS": "false", "SELECT_SERVICE_NO_ASSUMED_INDEX": "true"}
        )
        launched = LaunchedProcess(own_command(*place, *HEALTH), environment, port)
        launched.wait_until_healthy()
        return launched

    service = Reached(port)
    with (
        ExitStack() as stack,
        begun() as first,
        Gateway(service, *LONG) as gateway,
        two_engines(service) as engines,
    ):

        async def restarted(scene: Scene, engine: Engine) -> None:
            first.kill()
            stack.enter_context(begun())
            for each in engines:
                each.register()
            engine.kill()

        asyncio.run(play(service, gateway, engines, restarted))


def test_a_terminated_gateway_lets_its_clients_read_to_the_end(service, live_engines):
    async def terminate_gateway(scene: Scene, engine: Engine) -> None:
        gateway.process.terminate()
        await scene.control(engine, "go")

    with Gateway(service, *LONG) as gateway:
        asyncio.run(play(service, gateway, live_engines, terminate_gateway))
        assert gateway.process.wait(PATIENCE_S) is not None


async def test_a_client_that_leaves_frees_its_reservation_at_once(service, live_engines, gateway):
    async with scene_of(service) as scene:
        await scene.control(live_engines[0], "hold", after=HELD_AFTER)
        await scene.control(live_engines[1], "hold", after=0)
        readers = [Reader([n]) for n in range(8)]
        reading = [asyncio.create_task(each.read(scene.http, gateway)) for each in readers]

        async def are(n: int) -> bool:
            streams = sum([await scene.streams(engine) for engine in live_engines])
            return streams == n == await scene.booked()

        await scene.until(lambda: are(len(readers)))
        await eventually_on_loop(lambda: any(reader.tokens for reader in readers))
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        await scene.until(lambda: are(0))


async def test_a_client_may_request_an_answer_in_one_piece(service, live_engines, gateway):
    async with scene_of(service) as scene:
        for prompt in ("a text", [5, 6, 7]):
            body = {"prompt": prompt, "max_tokens": TOKENS}
            async with scene.http.post(gateway.url, json=body) as answer:
                whole = await answer.json()
            right = list(islice(generated(ids_of(prompt)), TOKENS))
            (choice,) = whole["choices"]
            assert choice["text"] == text_of(right)
            assert choice["finish_reason"] == "length"
            assert "token_ids" not in choice
            assert whole["usage"]["completion_tokens"] == TOKENS
            assert whole["usage"]["prompt_tokens"] == len(prompt)
        await scene.until_freed()


async def test_a_client_gets_the_refusal_of_the_service(service, live_engines, gateway):
    async with scene_of(service) as scene:
        await scene.ask("POST", "/admission/shed", {"tier": "standard"})
        async with scene.http.post(gateway.url, json={"prompt": [1]}) as answer:
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) > 0
            assert (await answer.json())["code"] == "capacity_shed"
        await scene.ask("POST", "/admission/shed", {"tier": None})
        await scene.until_freed()


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"prompt": []},
        {"prompt": ["a", "b"]},
        {"prompt": [1], "n": 2},
        {"prompt": [1], "max_tokens": 0},
    ],
)
async def test_requests_that_no_engine_could_take_over_are_refused(service, gateway, body):
    async with scene_of(service) as scene, scene.http.post(gateway.url, json=body) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["message"]
