"""Tests of plugin calls in this process: answers, failures, breakers, held answers, heartbeats."""

import asyncio
import time
from threading import Event
from typing import Any

import pytest

from select_service.planner.core.reconcile import BoundType, Proposal, ProposedCount
from select_service.planner.core.stages import (
    CallOutcome,
    Prediction,
    SourcedPrediction,
    Stage,
)
from select_service.planner.plugins import PluginContext, ReplicaTarget, ReplicaTargets, Role
from select_service.planner.plugins import in_process_plugin as in_processes
from select_service.planner.plugins.in_process_plugin import InProcessPlugin
from select_service.planner.plugins.plugin_host import (
    FAILURES_MAX,
    PAUSE_S,
    HostedPlugin,
    PluginHost,
)
from select_service.planner.plugins.plugin_port import PluginError
from tests.planner.plugins.hosting import (
    CHAT,
    Calls,
    a_config,
    a_context,
    hangs,
    in_process,
)

AT_MOST_3 = ReplicaTargets(
    targets=(ReplicaTarget(Role.DECODE, BoundType.AT_MOST, 3),), reason="costs"
)


async def test_an_answer_has_its_source_and_priority() -> None:
    seen: list[PluginContext] = []

    def propose(context: PluginContext) -> ReplicaTargets:
        seen.append(context)
        return AT_MOST_3

    given = await in_process(Calls(propose), priority=5).ask()
    assert given.answers == (
        Proposal(
            source="cost",
            priority=5,
            targets=(ProposedCount("decode", BoundType.AT_MOST, 3),),
        ),
    )
    (call,) = given.calls
    assert (call.plugin, call.stage, call.outcome, call.text) == (
        "cost",
        Stage.PROPOSE,
        CallOutcome.ANSWERED,
        "costs",
    )
    assert (seen[0].deployment, seen[0].roles[Role.DECODE].ready) == (CHAT, 2)


async def test_mappings_are_answers_and_none_is_no_opinion() -> None:
    given = await in_process(Calls(lambda context: {"requests": 5}), stage="predict").ask()
    assert given.answers == (
        SourcedPrediction(source="cost", priority=0, prediction=Prediction(requests=5.0)),
    )
    given = await in_process(Calls(lambda context: None)).ask()
    assert (given.answers, given.calls[0].outcome) == ((), CallOutcome.ANSWERED)


HUGE = [{"component": "decode", "type": "SET", "replicas": 1}] * 1_000_000


@pytest.mark.parametrize(
    ("stage", "answer"),
    [
        ("predict", {"requests": -1.0}),
        ("predict", {"requests": float("nan")}),
        ("predict", {"isl": float("inf")}),
        ("predict", Prediction(kv_hit_rate=7.0)),
        ("predict", {"reason": "x" * 1_000_000}),
        ("predict", {"reason": "\ud800"}),
        ("predict", {"isl": "\ud800"}),
        ("propose", {"reason": "\ud800"}),
        ("predict", AT_MOST_3),
        ("propose", {"targets": HUGE}),
        ("propose", {"targets": "decode"}),
        ("propose", {"targets": [{"component": "prefill", "type": "SET", "replicas": 1}]}),
        ("propose", {"targets": [{"component": "gpu", "type": "SET", "replicas": 1}]}),
        ("propose", ReplicaTargets(targets=(ReplicaTarget(Role.DECODE, BoundType.SET, -1),))),
        ("propose", ReplicaTargets(targets=(ReplicaTarget(Role.DECODE, BoundType.SET, 1 << 70),))),
        ("propose", {"finall": True}),
        ("propose", object()),
        ("propose", [1]),
        ("constrain", {"targets": [{"component": "decode", "type": "SET", "replicas": 1}]}),
        ("constrain", {"final": True}),
    ],
)
async def test_an_impossible_answer_is_no_opinion(stage: str, answer: object) -> None:
    given = await in_process(Calls(lambda context: answer), stage=stage).ask()
    assert given.answers == ()
    assert given.calls[0].outcome is CallOutcome.INVALID
    assert 0 < len(given.calls[0].text) <= 300


def raises(error: BaseException) -> Any:
    def fail(context: PluginContext) -> None:
        raise error

    return fail


class NoText(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    "error", [ValueError("no\nprice"), ValueError("\ud800"), SystemExit(3), NoText(), MemoryError()]
)
async def test_exceptions_are_failures(error: BaseException) -> None:
    call = await in_process(Calls(raises(error))).call()
    assert call.outcome is CallOutcome.FAILED
    assert type(error).__name__ in call.text
    assert "\n" not in call.text
    assert call.text.encode()


async def test_a_plugin_cannot_change_the_context_of_others() -> None:
    def change(context: PluginContext) -> None:
        context.roles.clear()

    host = in_process(Calls(change))
    context = a_context()
    by_s = asyncio.get_running_loop().time() + 5.0
    await host.host.answer_stage(CHAT, context, by_s)
    assert list(context.roles) == [Role.DECODE]


async def test_a_hanging_call_is_skipped_while_it_runs() -> None:
    freed, calls = Event(), []

    def hang(context: PluginContext) -> ReplicaTargets:
        calls.append(context.now_s)
        freed.wait(30.0)
        return AT_MOST_3

    host = in_process(Calls(hang), timeout_s=0.05)
    begun = time.monotonic()
    assert (await host.call(1.0)).outcome is CallOutcome.TIMED_OUT
    assert (await host.call(2.0)).outcome is CallOutcome.BUSY
    assert (await host.call(3.0)).outcome is CallOutcome.BUSY
    assert time.monotonic() - begun < 10.0
    assert calls == [1.0]
    freed.set()
    while (await host.call(4.0)).outcome is CallOutcome.BUSY:
        await asyncio.sleep(0.01)
    # The late answer belongs to a tick that is over.
    assert (await host.ask(5.0)).answers != ()


async def test_hanging_calls_of_all_deployments_have_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_processes, "THREADS_MAX", 2)
    freed, calls = Event(), []

    def hang(context: PluginContext) -> None:
        calls.append(context.deployment)
        freed.wait(30.0)

    names = ["a", "b", "c"]
    port = InProcessPlugin("cost", dict.fromkeys(names, Calls(hang)))
    host = PluginHost([HostedPlugin(a_config(timeout_s=0.2), port, names)], lambda: 0.0)
    by_s = asyncio.get_running_loop().time() + 5.0
    given = await asyncio.gather(*(host.answer_stage(n, a_context(), by_s) for n in names))
    assert [each.calls[0].outcome for each in given] == [
        CallOutcome.TIMED_OUT,
        CallOutcome.TIMED_OUT,
        CallOutcome.BUSY,
    ]
    assert calls == ["a", "b"]
    freed.set()


async def test_the_deadline_of_the_tick_ends_a_call() -> None:
    call = await in_process(Calls(hangs), timeout_s=5.0).call(within_s=0.05)
    assert call.outcome is CallOutcome.TIMED_OUT
    assert call.seconds < 5.0


async def test_after_failures_a_plugin_rests_for_a_minute() -> None:
    calls: list[float] = []

    def fail(context: PluginContext) -> None:
        calls.append(context.now_s)
        raise ValueError("no price")

    host = in_process(Calls(fail))
    outcomes = [(await host.call(float(at))).outcome for at in range(FAILURES_MAX + 2)]
    assert outcomes == [CallOutcome.FAILED] * FAILURES_MAX + [CallOutcome.PAUSED] * 2
    host.clock.now += PAUSE_S
    assert (await host.call(9.0)).outcome is CallOutcome.FAILED
    assert len(calls) == FAILURES_MAX + 1


async def test_held_answers_end() -> None:
    answers: list[object] = [AT_MOST_3]

    def answer(context: PluginContext) -> object:
        return answers.pop() if answers else 1 / 0

    host = in_process(Calls(answer), on_failure="hold", hold_s=30.0)
    first = await host.ask(10.0)
    held = await host.ask(20.0)
    assert held.answers == first.answers != ()
    assert (held.calls[0].outcome, held.calls[0].is_held) == (CallOutcome.FAILED, True)
    late = await host.ask(41.0)
    assert (late.answers, late.calls[0].is_held) == ((), False)


async def test_without_hold_a_failure_is_no_opinion() -> None:
    answers: list[object] = [AT_MOST_3]
    host = in_process(Calls(lambda context: answers.pop() if answers else 1 / 0))
    assert (await host.ask(10.0)).answers != ()
    assert (await host.ask(20.0)).answers == ()


async def test_between_two_calls_the_last_answer_counts() -> None:
    calls: list[float] = []

    def answer(context: PluginContext) -> object:
        calls.append(context.now_s)
        return AT_MOST_3 if len(calls) < 2 else 1 / 0

    host = in_process(Calls(answer), interval_s=60.0)
    first, second = await host.ask(0.0), await host.ask(30.0)
    assert first.answers == second.answers != ()
    assert second.calls[0].outcome is CallOutcome.REPEATED
    assert (await host.ask(60.0)).calls[0].outcome is CallOutcome.FAILED
    again = await host.ask(90.0)
    assert (again.answers, again.calls[0].outcome) == ((), CallOutcome.FAILED)
    assert calls == [0.0, 60.0]


async def test_without_a_heartbeat_a_plugin_is_not_called() -> None:
    class Port(InProcessPlugin):
        is_alive = False

        async def send_heartbeat(self) -> None:
            if not self.is_alive:
                raise PluginError("connection refused")

    config = a_config(url="http://plugin", class_path=None, heartbeat_s=1.0)
    port = Port("cost", {CHAT: Calls(lambda context: AT_MOST_3)})
    plugin = HostedPlugin(config, port, [CHAT])
    beating = asyncio.create_task(plugin.run_heartbeats(0.01))
    while plugin.heartbeat_fault is None:
        await asyncio.sleep(0.01)
    by_s = asyncio.get_running_loop().time() + 5.0
    host = PluginHost([plugin], lambda: 0.0)
    (call,) = (await host.answer_stage(CHAT, a_context(), by_s)).calls
    assert call.outcome is CallOutcome.PAUSED
    assert call.text == "no heartbeat: connection refused"
    port.is_alive = True
    while plugin.heartbeat_fault is not None:
        await asyncio.sleep(0.01)
    (call,) = (await host.answer_stage(CHAT, a_context(), by_s)).calls
    assert call.outcome is CallOutcome.ANSWERED
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    host.start_heartbeats()
    await host.close()
