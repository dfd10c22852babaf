"""Tests of the minimal gateway, called by the official client of OpenAI's interface."""

import asyncio
import contextlib
import ssl
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import httpx
import openai
import pytest

from tests.builders.certificates import Authority
from tests.builders.keys import entry, keys_file, secret
from tests.builders.launched_process import LaunchedProcess, free_port, own_environment
from tests.builders.polling import PATIENCE_S, eventually
from tests.builders.running import Answer, Reached, Running
from tests.examples.gateway_scenes import EXAMPLES, TOKENS, Engine, two_engines
from tests.examples.token_engine import generated, ids_of, text_of

pytestmark = pytest.mark.process

CLIENTS = 64
HELD_AFTER = 8
AT_ONCE_S = 5.0


@pytest.fixture(scope="module")
def service() -> Iterator[Reached]:
    with Running("--threads", "1") as service:
        yield service


@pytest.fixture(scope="module")
def gateway(service: Reached) -> Iterator[LaunchedProcess]:
    port = free_port()
    flags = ("--selector", f"http://127.0.0.1:{service.port}", "--model", "m", f"--port={port}")
    command = (sys.executable, str(EXAMPLES / "gateway" / "gateway.py"), *flags)
    with LaunchedProcess(command, own_environment({}), port) as gateway:
        gateway.wait_until_healthy()
        yield gateway


@pytest.fixture
def engines(service: Reached) -> Iterator[tuple[Engine, Engine]]:
    with two_engines(service) as engines:
        yield engines


def client_of(gateway: LaunchedProcess) -> openai.AsyncOpenAI:
    """Return a client that never retries."""
    url = f"http://127.0.0.1:{gateway.port}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S)


def control_engine(engine: Engine, verb: str, **words: object) -> None:
    assert Reached(engine.port).call("POST", f"/{verb}", words).status == 200


def right(prompt: str | list[int], tokens: int = TOKENS) -> str:
    return text_of(islice(generated(ids_of(prompt)), tokens))


def has_no_reservations(service: Reached) -> bool:
    return bool(service.call("GET", "/reservations").body["total"] == 0)


async def completed(
    client: openai.AsyncOpenAI, prompt: str | list[int], came: list[str] | None = None
) -> str:
    """Return the text of a stream; `came` collects the pieces."""
    came = [] if came is None else came
    stream = await client.completions.create(
        model="m", prompt=prompt, max_tokens=TOKENS, stream=True
    )
    async for chunk in stream:
        came.append(chunk.choices[0].text)
    return "".join(came)


async def chatted(client: openai.AsyncOpenAI, text: str) -> str:
    """Return the text of a chat, by a stream."""
    stream = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": text}], max_tokens=TOKENS, stream=True
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def chatted_whole(client: openai.AsyncOpenAI, text: str) -> str:
    """Return the text of a chat, in a single piece."""
    answer = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": text}], max_tokens=TOKENS
    )
    return answer.choices[0].message.content or ""


def test_many_streams_at_a_time_are_whole_and_leave_nothing_booked(service, engines, gateway):
    async def all_of_them() -> list[str]:
        async with client_of(gateway) as client:
            return await asyncio.gather(
                *(completed(client, f"prompt {n}") for n in range(CLIENTS // 2)),
                *(chatted(client, f"prompt {n}") for n in range(CLIENTS // 2)),
            )

    expected = [right(f"prompt {n}") for n in range(CLIENTS // 2)]
    assert asyncio.run(all_of_them()) == expected * 2
    eventually(lambda: has_no_reservations(service))
    (partition,) = service.call("GET", "/loads").body
    ranks = partition["loads"]
    assert {rank["worker_id"] for rank in ranks} == {engine.worker_id for engine in engines}
    assert not any(rank["potential_prefill_tokens"] + rank["active_requests"] for rank in ranks)


def test_answers_in_one_piece_are_whole(service, engines, gateway):
    async def both() -> tuple[str, str]:
        async with client_of(gateway) as client:
            text = await client.completions.create(model="m", prompt=[5, 6], max_tokens=TOKENS)
            chat = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "one"}], max_tokens=TOKENS
            )
            return text.choices[0].text, chat.choices[0].message.content or ""

    assert asyncio.run(both()) == (right([5, 6]), right("one"))
    eventually(lambda: has_no_reservations(service))


async def test_prompts_that_engines_tokenise_are_routed_by_their_tokens(service, engines, gateway):
    """Both answers of a prompt are booked with as many tokens as the text has bytes."""
    prompt = "routed by what it is" * 3
    for engine in engines:
        assert Reached(engine.port).call("POST", "/hold", {"after": 1}).status == 200
    async with client_of(gateway) as client:
        asking = asyncio.create_task(completed(client, prompt))
        path = "/reservations?limit=10"
        while not (rows := (await on_thread(service, path))["reservations"]):
            await asyncio.sleep(0.01)
        for engine in engines:
            await on_thread(engine, "/go", {})
        await asking
        assert [row["isl_tokens"] for row in rows] == [len(prompt)]


async def on_thread(where, path, body=None):
    method = "GET" if body is None else "POST"
    return (await asyncio.to_thread(Reached(where.port).call, method, path, body)).body


def test_an_engine_that_is_not_there_is_not_noticed(service, engines, gateway):
    engines[0].kill()

    async def some() -> list[str]:
        async with client_of(gateway) as client:
            return await asyncio.gather(*(completed(client, f"late {n}") for n in range(8)))

    assert asyncio.run(some()) == [right(f"late {n}") for n in range(8)]
    eventually(lambda: has_no_reservations(service))


def test_an_engine_that_is_killed_in_the_middle_ends_its_streams_and_no_others(
    service, engines, gateway
):
    """Every engine has sent something: before that, another engine would start again."""
    for engine in engines:
        control_engine(engine, "hold", after=HELD_AFTER)
    prompts = [f"p{n}" for n in range(CLIENTS)]
    came: dict[str, list[str]] = {prompt: [] for prompt in prompts}
    halves = [right(prompt, HELD_AFTER) for prompt in prompts]

    async def killed() -> tuple[int, list[str | BaseException]]:
        async with client_of(gateway) as client:
            asking = [asyncio.create_task(completed(client, p, came[p])) for p in prompts]
            async with asyncio.timeout(PATIENCE_S):
                while ["".join(came[prompt]) for prompt in prompts] != halves:
                    await asyncio.sleep(0.02)
            lost = await streams_of(engines[0])
            engines[0].kill()
            await on_thread(engines[1], "/go", {})
            return lost, await asyncio.gather(*asking, return_exceptions=True)

    lost, answers = asyncio.run(killed())
    broken = [a for a, p in zip(answers, prompts, strict=True) if a != right(p)]
    assert 0 < len(broken) == lost < CLIENTS
    assert all(isinstance(each, openai.APIError) for each in broken), broken
    assert all("the engine failed" in str(each) for each in broken)
    eventually(lambda: has_no_reservations(service))


async def streams_of(engine: Engine) -> int:
    with contextlib.suppress(OSError):
        return int(await on_thread(engine, "/streams"))
    return 0


def test_streams_of_a_killed_engine_that_have_brought_nothing_end_whole_elsewhere(
    service, engines, gateway
):
    control_engine(engines[0], "hold", after=0)

    async def killed() -> list[str]:
        async with client_of(gateway) as client:
            asking = [asyncio.create_task(completed(client, f"q{n}")) for n in range(CLIENTS)]
            while True:
                waiting = await streams_of(engines[0])
                if waiting + sum(task.done() for task in asking) == CLIENTS:
                    break
                await asyncio.sleep(0.02)
            assert waiting
            engines[0].kill()
            return await asyncio.gather(*asking)

    assert asyncio.run(killed()) == [right(f"q{n}") for n in range(CLIENTS)]
    eventually(lambda: has_no_reservations(service))


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("after", [0, HELD_AFTER])
def test_a_client_that_leaves_is_freed_at_once(service, engines, gateway, is_stream, after):
    """The client leaves before the first token, in the middle, or before a whole answer."""
    for engine in engines:
        control_engine(engine, "hold", after=after)
    ask = chatted if is_stream else chatted_whole

    async def leave_early() -> None:
        async with client_of(gateway) as client:
            asking = asyncio.create_task(ask(client, "leaving"))
            while await asyncio.to_thread(has_no_reservations, service):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(leave_early())
    try:
        eventually(lambda: has_no_reservations(service), AT_ONCE_S)  # the engines send nothing
    finally:
        for engine in engines:
            control_engine(engine, "go")
    eventually(lambda: has_no_reservations(service), AT_ONCE_S)


@pytest.mark.parametrize("status", [400, 429])
def test_a_client_gets_the_refusal_of_the_engine(service, engines, gateway, status):
    for engine in engines:
        control_engine(engine, "fail", status=status)

    async def refused() -> openai.APIStatusError:
        async with client_of(gateway) as client:
            with pytest.raises(openai.APIStatusError) as answer:
                await completed(client, "no")
            return answer.value

    answer = asyncio.run(refused())
    assert (answer.status_code, answer.body) == (status, {"message": "failing"})
    eventually(lambda: has_no_reservations(service))


async def test_a_client_gets_the_refusal_of_the_service(service, gateway):
    """There are no workers."""

    async with client_of(gateway) as client:
        with pytest.raises(openai.APIStatusError) as told:
            await client.completions.create(model="m", prompt=[1], max_tokens=2)
        assert told.value.status_code == 503


@pytest.mark.parametrize("body", [{}, {"prompt": ""}, [1]])
def test_an_invalid_request_is_refused(gateway, body):
    answer = Reached(gateway.port).call("POST", "/v1/completions", body)
    assert answer.status == 400
    assert answer.body["error"]["type"] == "gateway_error"


class Guarded(Reached):
    """Service with https and API keys; calls carry a key with all roles."""

    def __init__(self, port: int, trust: ssl.SSLContext, key: str) -> None:
        super().__init__(port)
        self._http = httpx.Client(verify=trust, headers={"authorization": f"Bearer {key}"})

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        url = f"https://127.0.0.1:{self.port}{path}"
        answer = self._http.request(method, url, json=body, headers=headers)
        return Answer(answer.status_code, dict(answer.headers), answer.json())


@pytest.mark.parametrize("example", ["gateway", "surviving_gateway"])
def test_key_and_ca_of_the_environment_reach_a_secured_selector(tmp_path, example):
    keys = keys_file(tmp_path, entry("all", "caller", "operator"), entry("gateway", "caller"))
    authority = Authority(tmp_path, "ca")
    issued = authority.issue()
    trust = ssl.create_default_context(cafile=authority.file)
    flags = ("--api-keys-file", str(keys), "--tls-cert", str(issued.certificate))
    flags += ("--health-checks", "on", "--connect-to-loopback")
    with Running(*flags, "--tls-key", str(issued.key), trust=trust) as running:
        service = Guarded(running.port, trust, secret("all"))
        port = free_port()
        place = (
            "--selector",
            f"https://127.0.0.1:{service.port}",
            "--model",
            "m",
            f"--port={port}",
        )
        command = (sys.executable, str(EXAMPLES / example / "gateway.py"), *place)
        told = {"SELECTOR_API_KEY": secret("gateway"), "SSL_CERT_FILE": str(authority.file)}
        with two_engines(service), LaunchedProcess(command, own_environment(told), port) as gateway:
            gateway.wait_until_healthy()

            async def one() -> str:
                async with client_of(gateway) as client:
                    return await completed(client, "a prompt")

            assert asyncio.run(one()) == right("a prompt")
            eventually(lambda: has_no_reservations(service))
