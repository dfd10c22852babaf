"""Tests of canaries over real sockets: every kind of answer, and the times of sending."""

import asyncio
import gc
import socket
import time

import pytest

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.health import canary_sender
from select_service.adapters.health.canary_sender import BODY_BYTES_MAX, IDLE_TOKENS_MAX
from select_service.adapters.health.loop_lag import MEASURE_INTERVAL_S, STALLED_S
from select_service.adapters.probe_http import TimedHttpClient
from select_service.core.health.answers.answer_check import ExpectedAnswer
from select_service.core.health.checks.canary_prompts import CanaryPrompt
from select_service.core.health.checks.check_state import Attempt, CheckOrder
from select_service.core.health.health_kinds import AttemptResult
from select_service.core.identity import Rank
from tests.adapters.health.owners import Owner, Places, sending
from tests.adapters.metric_servers import send_parts, send_repeatedly, speaking
from tests.builders.polling import PATIENCE_S, eventually_on_loop
from tests.builders.toy_engine import Fault, ToyEngine, generate, serving

SHORT_S = 0.1
OK = b"HTTP/1.1 200 OK\r\n"
STEPS = generate([11, 12, 13], 4)
IDS = [step.read_token for step in STEPS]


async def attempt_of(speak, timeout_s=PATIENCE_S):
    """Return the attempt of a canary to a server that answers by `speak`."""
    async with speaking(speak) as url:
        owner = Owner()
        async with sending(owner, Places(url.removesuffix("/metrics")), timeout_s):
            return await owner.attempt_of()


def http(status, body=b"", headers=b""):
    length = b"content-length: %d\r\n\r\n" % len(body)
    return send_parts(b"HTTP/1.1 %d X\r\n" % status + headers + length + body)


@pytest.mark.parametrize("style", ["vllm", "sglang"])
async def test_an_answer_is_handed_over_with_its_time(style):
    engine = ToyEngine(style)
    async with serving(engine) as endpoint:
        owner = Owner()
        async with sending(owner, Places(endpoint)):
            attempt = await owner.attempt_of()
    assert attempt.result is AttemptResult.ANSWER
    names = IDS if style == "vllm" else [f"<{token}>" for token in IDS]
    assert attempt.answer.tokens == names
    assert attempt.engine == style
    assert attempt.latency_ms > 0.0
    ((rank, path, body),) = engine.requests
    assert (rank, path, body["prompt"], body["max_tokens"]) == (
        0,
        "/v1/completions",
        [11, 12, 13],
        4,
    )


async def test_sglangs_own_route_is_used_if_configured():
    engine = ToyEngine("sglang", ranks=2)
    async with serving(engine) as endpoint:
        owner = Owner(names_ranks=True)
        async with sending(owner, Places(endpoint, api="sglang")):
            attempt = await owner.attempt_of(Rank(1, 1))
    assert list(attempt.answer.tokens) == IDS
    assert list(attempt.answer.top) == [step.likely for step in STEPS]
    ((rank, path, _),) = engine.requests
    assert (rank, path) == (1, "/generate")


async def test_an_older_sglang_gets_no_key_of_its_own():
    engine = ToyEngine("sglang", ranks=2, plain=True)
    async with serving(engine) as endpoint:
        owner = Owner(names_ranks=True)
        async with sending(owner, Places(endpoint, api="sglang")):
            for _ in range(2):
                attempt = await owner.attempt_of(Rank(1, 1))
                assert attempt.result is AttemptResult.ANSWER
    assert [(rank, "extra_key" in body) for rank, _, body in engine.requests] == [
        (1, True),
        (1, False),
        (1, False),
    ]


CAME = [
    (AttemptResult.CONNECT, send_parts()),
    (AttemptResult.CONNECT, send_parts(b"HTTP/1.1 2")),
    (AttemptResult.HTTP_5XX, http(500)),
    (AttemptResult.HTTP_5XX, http(502)),
    (AttemptResult.HTTP_5XX, http(504)),
    (AttemptResult.HTTP_5XX, http(507)),
    (AttemptResult.HTTP_5XX, http(503)),
    (AttemptResult.HTTP_5XX, http(503, b"the engine is dead")),
    (AttemptResult.HTTP_5XX, send_parts(b"HTTP/1.1 500 X\r\ncontent-length: 9\r\n\r\nbroken")),
    (AttemptResult.BUSY, http(429)),
    (AttemptResult.BUSY, http(503, headers=b"retry-after: 5\r\n")),
    (AttemptResult.BUSY, http(503, b'{"message": "The request queue is full."}')),
    (AttemptResult.BUSY, http(503, b"Model Overloaded")),
    (AttemptResult.BUSY, http(503, b"queue_full")),
    (AttemptResult.MISCONFIGURED, http(404)),
    (AttemptResult.MISCONFIGURED, http(401)),
    (AttemptResult.MISCONFIGURED, http(413)),
    (AttemptResult.MISCONFIGURED, http(400)),
    (AttemptResult.MISCONFIGURED, http(422)),
    (AttemptResult.MISCONFIGURED, http(302, headers=b"location: http://127.0.0.1:9/\r\n")),
    (AttemptResult.MISCONFIGURED, http(307, headers=b"location: /v1/completions\r\n")),
    (AttemptResult.MALFORMED, http(204)),
    (AttemptResult.MALFORMED, http(200)),
    (AttemptResult.MALFORMED, http(200, b"<html>sign in</html>")),
    (AttemptResult.MALFORMED, http(200, b'{"object": "error", "message": "no"}')),
    (AttemptResult.MALFORMED, http(200, b'{"choices": []}')),
    (AttemptResult.MALFORMED, send_parts(OK + b"content-length: 99\r\n\r\n" + b'{"choices": [')),
    (AttemptResult.MALFORMED, send_repeatedly(OK + b"\r\n", b" " * 65536)),
    (AttemptResult.MALFORMED, http(200, b" " * (BODY_BYTES_MAX + 1))),
    (AttemptResult.MALFORMED, http(200, b"{}", b"content-encoding: gzip\r\n")),
    (AttemptResult.MALFORMED, send_parts(b"\x00\xff\x16\x03 is no HTTP\r\n\r\n")),
    (AttemptResult.TIMEOUT, send_parts(hangs=True)),
    (AttemptResult.TIMEOUT, send_parts(OK, hangs=True)),
    (AttemptResult.TIMEOUT, send_parts(OK + b"content-length: 9\r\n\r\n{", hangs=True)),
    (AttemptResult.TIMEOUT, send_repeatedly(OK + b"\r\n", b" ", pause_s=0.01)),
]


REFUSALS = [
    (b'{"error": {"message": "The model `m` does not exist.", "code": 404}}', ": The model `m`"),
    (b'{"object": "error", "message": "no such model", "code": 404}', ": no such model"),
    (b'{"error": "no such model"}', ": no such model"),
    (b'{"detail": "Not Found"}', ": Not Found"),
    (b'{"detail": [{"loc": ["body"]}]}', ""),
    (b'{"error": {"message": 404}}', ""),
    (b"[]", ""),
    (b"<html>no such page</html>", ""),
    (b'{"message": "' + b"x" * 1000 + b'"}', ": " + "x" * 180),
    (b'{"message": "' + b"x" * 20_000 + b'"}', ""),
    (b"[" * 20_000, ""),
]


@pytest.mark.parametrize(("body", "words"), REFUSALS, ids=range(len(REFUSALS)))
async def test_a_refusal_is_shown_in_the_words_of_the_engine(body, words):
    attempt = await attempt_of(http(404, body))
    assert attempt.why.startswith(f"status 404{words}")
    assert words or attempt.why == "status 404"
    assert len(attempt.why) <= 200


@pytest.mark.parametrize(("came", "speak"), CAME, ids=range(len(CAME)))
async def test_every_fault_of_an_answer_has_a_name(came, speak):
    attempt = await attempt_of(speak, SHORT_S if came is AttemptResult.TIMEOUT else PATIENCE_S)
    assert attempt.result is came
    assert attempt.answer is None
    assert not attempt.counts_latency
    assert attempt.why


async def test_a_connection_that_is_reset_is_no_connection():
    engine = ToyEngine()
    engine.faults[0] = Fault(resets=True)
    async with serving(engine) as endpoint:
        owner = Owner()
        async with sending(owner, Places(endpoint)):
            assert (await owner.attempt_of()).result is AttemptResult.CONNECT


async def test_a_port_without_a_server_is_no_connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    owner = Owner()
    async with sending(owner, Places(f"http://127.0.0.1:{port}")):
        assert (await owner.attempt_of()).result is AttemptResult.CONNECT


async def test_an_unknown_name_is_no_connection_and_one_without_answer_takes_all_the_time():
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    owner = Owner()
    async with sending(owner, Places("http://no-such"), names=Resolver(unknown)):
        assert (await owner.attempt_of()).result is AttemptResult.CONNECT


async def test_an_untrusted_certificate_is_no_connection():
    attempt = await attempt_of(send_parts(b"\x15\x03\x01\x00\x02\x02\x28"))
    assert attempt.result is AttemptResult.MALFORMED  # over http
    async with serving(ToyEngine()) as endpoint:
        owner = Owner()
        async with sending(owner, Places(endpoint.replace("http:", "https:"))):
            assert (await owner.attempt_of()).result is AttemptResult.CONNECT


async def test_a_rank_that_has_gone_gets_no_canary():
    owner, places = Owner(), Places("http://127.0.0.1:9")
    places.find_target = lambda rank: None
    async with sending(owner, places):
        assert (await owner.attempt_of()).result is AttemptResult.MISCONFIGURED


async def test_an_engine_that_rejects_fields_gets_plain_requests_from_then_on():
    engine = ToyEngine(plain=True)
    async with serving(engine) as endpoint:
        owner, places = Owner(), Places(endpoint)
        async with sending(owner, places):
            for _ in range(3):
                assert (await owner.attempt_of()).result is AttemptResult.ANSWER
            has_salt = ["cache_salt" in body for _, _, body in engine.requests]
            assert has_salt == [True, False, False, False]
            places.register(1)
            await owner.attempt_of()
    assert ["cache_salt" in body for _, _, body in engine.requests[4:]] == [True, False]


async def test_an_engine_that_has_answered_once_never_gets_plain_requests():
    engine = ToyEngine()
    async with serving(engine) as endpoint:
        owner = Owner()
        async with sending(owner, Places(endpoint)):
            await owner.attempt_of()
            engine.faults[0] = Fault(status=400)
            assert (await owner.attempt_of()).result is AttemptResult.MISCONFIGURED
    assert len(engine.requests) == 2


async def test_an_engine_that_rejects_both_forms_gets_both_again():
    engine = ToyEngine()
    engine.faults[0] = Fault(status=422)
    async with serving(engine) as endpoint:
        owner = Owner()
        async with sending(owner, Places(endpoint)):
            assert (await owner.attempt_of()).result is AttemptResult.MISCONFIGURED
            assert len(engine.requests) == 2
            engine.faults.clear()
            assert (await owner.attempt_of()).result is AttemptResult.ANSWER
    assert "cache_salt" in engine.requests[-1][2]


async def test_the_rank_is_named_only_where_several_share_an_endpoint():
    engine = ToyEngine(ranks=2)
    engine.faults[1] = Fault(status=500)
    async with serving(engine) as endpoint:
        owner = Owner(names_ranks=True)
        async with sending(owner, Places(endpoint)):
            assert (await owner.attempt_of(Rank(1, 1))).result is AttemptResult.HTTP_5XX
            assert (await owner.attempt_of(Rank(1, 0))).result is AttemptResult.ANSWER
        alone = Owner()
        async with sending(alone, Places(endpoint)):
            assert (await alone.attempt_of(Rank(9, 1))).result is AttemptResult.ANSWER


async def test_an_operators_answer_is_compared_with_ids():
    prompt = CanaryPrompt((11, 12, 13), 4, ExpectedAnswer(IDS))
    async with serving(ToyEngine("sglang")) as endpoint:
        owner = Owner()
        async with sending(owner, Places(endpoint)):
            assert (await owner.attempt_of(prompt=prompt)).answer.tokens == IDS


async def test_attempts_continue_as_long_as_the_owner_permits():
    engine = ToyEngine()
    engine.faults[0] = Fault(status=500, times=2)
    async with serving(engine) as endpoint:
        owner = Owner(0.05, 0.1)
        async with sending(owner, Places(endpoint)):
            assert (await owner.attempt_of()).result is AttemptResult.ANSWER
    assert [attempt.result for _, attempt, _ in owner.told] == [
        AttemptResult.HTTP_5XX,
        AttemptResult.HTTP_5XX,
        AttemptResult.ANSWER,
    ]
    first, second, third = (at for _, _, at in owner.told)
    assert second - first >= 0.05
    assert third - second >= 0.1
    salts = {body["cache_salt"] for _, _, body in engine.requests}
    assert len(salts) == 3


async def test_every_attempt_has_the_next_seed():
    engine = ToyEngine()
    async with serving(engine) as endpoint:
        owner = Owner(0.0, 0.0)
        owner.seed = 4
        async with sending(owner, Places(endpoint)):
            await owner.attempt_of()
    assert [body["seed"] for _, _, body in engine.requests] == [4, 5, 6]


async def test_every_attempt_has_its_own_connection():
    engine = ToyEngine()
    async with serving(engine) as endpoint:
        owner = Owner(0.0, 0.0)
        async with sending(owner, Places(endpoint)):
            await owner.attempt_of()
    assert len(engine.connections) == 3


async def test_the_time_is_that_of_the_answer():
    engine = ToyEngine()
    engine.faults[0] = Fault(seconds_to_wait=0.2)
    async with serving(engine) as endpoint:
        owner = Owner()
        async with sending(owner, Places(endpoint)):
            attempt = await owner.attempt_of()
    assert attempt.latency_ms >= 200.0


@pytest.mark.parametrize(("tokens", "counts"), [(IDLE_TOKENS_MAX, True), (2049, False)])
async def test_the_time_of_a_busy_rank_does_not_count(tokens, counts, monkeypatch):
    monkeypatch.setattr("select_service.adapters.health.loop_lag.STALLED_S", PATIENCE_S)
    async with serving(ToyEngine()) as endpoint:
        owner, places = Owner(), Places(endpoint)
        places.tokens = tokens
        async with sending(owner, places):
            assert (await owner.attempt_of()).counts_latency is counts


async def test_a_stall_of_the_loop_does_not_count():
    engine = ToyEngine()
    engine.faults[0] = Fault(seconds_to_wait=0.05)
    async with serving(engine) as endpoint:
        owner = Owner()
        async with sending(owner, Places(endpoint)):
            owner.order()
            await eventually_on_loop(lambda: engine.requests)
            time.sleep(2 * STALLED_S + MEASURE_INTERVAL_S)
            await eventually_on_loop(lambda: owner.told)
    assert not owner.told[0][1].counts_latency


class TimedOwner(Owner):
    """Owner that records the times of its requests for due checks."""

    def __init__(self):
        super().__init__()
        self.asked_at = []

    def next_due_check(self, now):
        self.asked_at.append(now)
        return super().next_due_check(now)


async def test_nothing_is_sent_in_a_turn_that_is_late():
    owner = TimedOwner()
    sender = canary_sender.CanarySender(
        owner, Places("http://127.0.0.1:9"), TimedHttpClient(Resolver()), None, timeout_s=1.0
    )
    now = time.monotonic() + 1.0
    sender.send_due(now)  # late: scheduled a second ago
    assert owner.asked_at == []
    sender.send_due(now + MEASURE_INTERVAL_S)
    sender.send_due(now + 2 * MEASURE_INTERVAL_S + STALLED_S - 0.001)
    assert len(owner.asked_at) == 2
    sender.send_due(now + 3 * MEASURE_INTERVAL_S + 2 * STALLED_S + 0.01)
    assert len(owner.asked_at) == 2


async def test_a_timeout_during_a_stall_of_this_process_is_repeated_once(monkeypatch):
    """Check that an answer not read in time is no fault of the engine."""
    monkeypatch.setattr(canary_sender, "STALLED_FRACTION", 0.1)
    engine = ToyEngine()
    engine.faults[0] = Fault(hangs=True, times=1)
    async with serving(engine) as endpoint:
        owner = Owner()
        async with sending(owner, Places(endpoint), timeout_s=2.0):
            owner.order()
            await eventually_on_loop(lambda: engine.requests)
            time.sleep(0.5)
            await eventually_on_loop(lambda: owner.told)
    ((_, attempt, _),) = owner.told
    assert attempt.result is AttemptResult.ANSWER
    assert len(engine.requests) == 2


async def test_a_bug_ends_its_check_and_no_other(caplog):
    class Broken(Places):
        def prefill_tokens(self, rank):
            if rank.worker_id == 1:
                raise ZeroDivisionError
            return 0

    async with serving(ToyEngine()) as endpoint:
        owner = Owner()
        async with sending(owner, Broken(endpoint), bugs=1):
            assert (await owner.attempt_of(Rank(1, 0))).result is AttemptResult.MISCONFIGURED
            assert (await owner.attempt_of(Rank(2, 0))).result is AttemptResult.ANSWER
    assert "ZeroDivisionError" in caplog.text


async def test_a_bug_ends_a_check_that_would_be_repeated():
    class Broken(Places):
        def prefill_tokens(self, rank):
            raise ZeroDivisionError

    async with serving(ToyEngine()) as endpoint:
        owner = Owner(0.0, 0.0)
        async with sending(owner, Broken(endpoint), bugs=1):
            await owner.attempt_of()
    assert len(owner.told) == 3


async def test_a_paused_check_waits_for_a_free_slot():
    engine = ToyEngine()
    async with serving(engine) as endpoint:
        owner = Owner(0.0)
        owner.places_missing = 3
        async with sending(owner, Places(endpoint)):
            await owner.attempt_of()
    assert owner.places_missing == -1
    assert len(engine.requests) == 2


async def test_the_end_aborts_running_checks():
    engine = ToyEngine()
    engine.faults[0] = Fault(hangs=True)
    async with serving(engine) as endpoint:
        owner = Owner()
        async with sending(owner, Places(endpoint)):
            owner.order()
            await eventually_on_loop(lambda: engine.at_once == 1)
        await eventually_on_loop(lambda: engine.at_once == 0)
    assert owner.told == []


@pytest.mark.parametrize(
    "speak",
    [http(200, b"{}"), http(200, b"{"), http(500), send_parts(), send_parts(hangs=True)],
    ids=["no answer", "no JSON", "status", "closed", "hangs"],
)
async def test_no_outcome_leaves_work_for_the_garbage_collector(speak):
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await attempt_of(speak, 0.05)
        await asyncio.sleep(0.02)  # lets the transports close
        gc.collect()
        left = [
            each for each in gc.garbage if isinstance(each, Attempt | CheckOrder | BaseException)
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert [repr(each) for each in left] == []
