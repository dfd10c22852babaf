"""Test of a hosted plugin against a naive twin that keeps its whole history."""

import asyncio
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from select_service.planner.core.plugin_contracts import PluginAnswer
from select_service.planner.core.stages import CallOutcome, Prediction, Stage
from select_service.planner.plugins.plugin_host import (
    FAILURES_MAX,
    PAUSE_S,
    HostedPlugin,
    PluginHost,
)
from select_service.planner.plugins.plugin_port import PluginBusy, PluginError, StageRequest
from tests.builders.hypothesis_profiles import explored
from tests.planner.plugins.hosting import a_config, a_context

DEPLOYMENTS = ("a", "b")
GOOD = (CallOutcome.ANSWERED, CallOutcome.REPEATED)


class Port:
    """Port that gives the outcomes chosen by the machine."""

    def __init__(self) -> None:
        self.next: CallOutcome = CallOutcome.ANSWERED
        self.calls = 0

    async def call_stage(self, request: StageRequest) -> PluginAnswer | None:
        self.calls += 1
        if self.next is CallOutcome.FAILED:
            raise PluginError("fails")
        if self.next is CallOutcome.BUSY:
            raise PluginBusy("busy")
        if self.next is CallOutcome.TIMED_OUT:
            raise TimeoutError
        if self.next is CallOutcome.INVALID:
            return Prediction(requests=float("nan"))
        return Prediction(requests=float(self.calls))

    async def send_heartbeat(self) -> None:
        """Succeed."""

    async def close(self) -> None:
        """Close without any effect."""


class Event(NamedTuple):
    """Tick with its expected result."""

    deployment: str
    at_s: float
    clock_s: float
    outcome: CallOutcome
    answer: float | None
    was_called: bool


class PluginMachine(RuleBasedStateMachine):
    @initialize(
        hold=st.booleans(),
        hold_s=st.sampled_from([0.0, 20.0, 100.0]),
        interval_s=st.sampled_from([0.0, 12.0, 30.0]),
    )
    def begin(self, hold: bool, hold_s: float, interval_s: float) -> None:
        self.config = a_config(
            stage="predict",
            on_failure="hold" if hold else "skip",
            hold_s=hold_s,
            interval_s=interval_s,
        )
        self.port = Port()
        self.plugin = HostedPlugin(self.config, self.port, DEPLOYMENTS)
        self.now = 1000.0
        self.history: list[Event] = []
        self.is_silent = False

    def _of(self, deployment: str) -> list[Event]:
        return [each for each in self.history if each.deployment == deployment]

    def _is_paused(self) -> bool:
        """Return whether three consecutive failures, over all deployments, are within a minute."""
        failures, until = 0, 0.0
        for each in self.history:
            if each.was_called and each.outcome is CallOutcome.ANSWERED:
                failures = 0
            elif each.was_called and each.outcome is not CallOutcome.BUSY:
                failures += 1
                if failures == FAILURES_MAX:
                    failures, until = 0, each.clock_s + PAUSE_S
        return self.now < until

    def _held_answer(self, deployment: str) -> float | None:
        good = [each for each in self._of(deployment) if each.outcome is CallOutcome.ANSWERED]
        if self.config.on_failure != "hold" or not good:
            return None
        return good[-1].answer if self.now - good[-1].at_s <= self.config.hold_s else None

    def _expect(self, deployment: str, does: CallOutcome) -> Event:
        # Skipped calls do not count: the interval runs from the last real call.
        due = [each for each in self._of(deployment) if each.outcome is not CallOutcome.REPEATED]
        own = [each for each in due if each.at_s in self._decided[deployment]]
        if own and self.now - own[-1].at_s < self.config.interval_s:
            last = own[-1]
            if last.outcome is CallOutcome.ANSWERED:
                return Event(
                    deployment, self.now, self.now, CallOutcome.REPEATED, last.answer, False
                )
            held = self._held_answer(deployment)
            return Event(deployment, self.now, self.now, last.outcome, held, False)
        self._decided[deployment].append(self.now)
        if self.is_silent or self._is_paused():
            held = self._held_answer(deployment)
            return Event(deployment, self.now, self.now, CallOutcome.PAUSED, held, False)
        if does is CallOutcome.ANSWERED:
            return Event(deployment, self.now, self.now, does, float(self.port.calls + 1), True)
        return Event(deployment, self.now, self.now, does, self._held_answer(deployment), True)

    @initialize()
    def begin_times(self) -> None:
        self._decided: dict[str, list[float]] = {name: [] for name in DEPLOYMENTS}

    @rule(
        deployment=st.sampled_from(DEPLOYMENTS),
        does=st.sampled_from(
            [
                CallOutcome.ANSWERED,
                CallOutcome.ANSWERED,
                CallOutcome.FAILED,
                CallOutcome.TIMED_OUT,
                CallOutcome.INVALID,
                CallOutcome.BUSY,
            ]
        ),
        later=st.sampled_from([1.0, 5.0, 12.0, 61.0]),
    )
    def tick(self, deployment: str, does: CallOutcome, later: float) -> None:
        self.now += later
        expected = self._expect(deployment, does)
        self.port.next = does
        before = self.port.calls

        async def ask() -> tuple[CallOutcome, float | None, bool]:
            host = PluginHost([self.plugin], lambda: self.now)
            context = a_context(Stage.PREDICT, self.now)
            by_s = asyncio.get_running_loop().time() + 5.0
            given = await host.answer_stage(deployment, context, by_s)
            (call,) = given.calls
            answer = given.answers[0].prediction.requests if given.answers else None  # type: ignore[union-attr]
            return call.outcome, answer, call.is_held

        outcome, answer, is_held = asyncio.run(ask())
        assert (outcome, answer) == (expected.outcome, expected.answer)
        assert is_held == (outcome not in GOOD and answer is not None)
        assert (self.port.calls > before) is expected.was_called
        self.history.append(expected)

    @rule(is_silent=st.booleans())
    def heartbeat(self, is_silent: bool) -> None:
        self.is_silent = is_silent
        self.plugin.heartbeat_fault = "gone" if is_silent else None


TestPluginMachine = explored(PluginMachine, runs=25, steps=30)
