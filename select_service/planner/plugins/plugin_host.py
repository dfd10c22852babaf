"""Host of the plugins: calls within a time, breakers, held answers and heartbeats."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from select_service.planner.config import PluginConfig
from select_service.planner.core.plugin_contracts import (
    InvalidAnswer,
    PluginAnswer,
    PluginContext,
    check_answer,
)
from select_service.planner.core.reconcile import Proposal, ProposedCount
from select_service.planner.core.stages import (
    CallOutcome,
    PluginCall,
    Prediction,
    SourcedPrediction,
    Stage,
)
from select_service.planner.core.tick_plan import StageAnswers
from select_service.planner.plugins.plugin_port import (
    PluginBusy,
    PluginError,
    PluginPort,
    StageRequest,
)

log = logging.getLogger("select_service.planner")

FAILURES_MAX = 3
"""Consecutive failures after which a plugin is not called for `PAUSE_S` seconds."""
PAUSE_S = 60.0
CALLS_MAX = 16
"""Limit of concurrent calls of a plugin, over all deployments."""
ERROR_CHARS_MAX = 300


class PluginBreaker:
    """Circuit breaker of a plugin."""

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def is_open(self, now: float) -> bool:
        """Return whether the plugin is not called."""
        return now < self._until

    def record_success(self) -> None:
        """Reset the failures."""
        self._failures = 0

    def record_failure(self, now: float) -> None:
        """Count a failure, and open after too many."""
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            # The count restarts, so that after the pause a single failure does not open the breaker
            # again.
            self._failures, self._until = 0, now + PAUSE_S


class _LastCall(NamedTuple):
    """Last call for a deployment. answer, good_s: last good answer, and the time of its tick"""

    at_s: float
    record: PluginCall
    answer: PluginAnswer | None = None
    good_s: float | None = None


class HostedPlugin:
    """Plugin with its state. Belongs to one event loop."""

    def __init__(self, config: PluginConfig, port: PluginPort, deployments: Iterable[str]) -> None:
        self.config = config
        self.port = port
        self.stage = Stage(config.stage)
        self.deployments = frozenset(deployments)
        self.heartbeat_fault: str | None = None
        """Error of the last heartbeat; None if it succeeded or none is configured."""
        self._breaker = PluginBreaker()
        self._slots = asyncio.Semaphore(CALLS_MAX)
        self._last: dict[str, _LastCall] = {}

    async def answer_stage(
        self, request: StageRequest, context: PluginContext, now: float, by_s: float
    ) -> tuple[PluginAnswer | None, PluginCall]:
        """Return the answer in force, or None, and the record of the call.

        now: seconds of a monotonic clock, for the breaker
        by_s: latest end, by the event loop's clock
        """
        last = self._last.get(request.deployment)
        if last is not None and context.now_s - last.at_s < self.config.interval_s:
            return self._repeat_last(last, context.now_s)
        if (why := self._why_paused(now)) is not None:
            record = PluginCall(
                plugin=self.config.name, stage=self.stage, outcome=CallOutcome.PAUSED, text=why
            )
            return self._record_failure(request.deployment, context.now_s, record)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        answer, outcome, text = await self._call(
            request, context, min(by_s, begun + self.config.timeout_s)
        )
        record = PluginCall(
            plugin=self.config.name,
            stage=self.stage,
            outcome=outcome,
            seconds=round(loop.time() - begun, 6),
            text=text,
        )
        if outcome is CallOutcome.ANSWERED:
            self._breaker.record_success()
            self._last[request.deployment] = _LastCall(context.now_s, record, answer, context.now_s)
            self._log_change(last, record)
            return answer, record
        # A plugin that still works on an earlier call was counted as late then.
        if outcome is not CallOutcome.BUSY:
            self._breaker.record_failure(now)
        self._log_change(last, record)
        return self._record_failure(request.deployment, context.now_s, record)

    async def _call(
        self, request: StageRequest, context: PluginContext, by_s: float
    ) -> tuple[PluginAnswer | None, CallOutcome, str]:
        """Return the answer, outcome and text of a call. Whatever the plugin does, this returns."""
        try:
            # The wait for a slot counts towards the time limit.
            async with asyncio.timeout_at(by_s), self._slots:
                answer = await self.port.call_stage(request)
                if answer is not None:
                    check_answer(self.stage, answer, context.roles)
        except TimeoutError:
            return None, CallOutcome.TIMED_OUT, f"no answer within {self.config.timeout_s:g} s"
        except InvalidAnswer as error:
            return None, CallOutcome.INVALID, _error_text(error)
        except PluginBusy as error:
            return None, CallOutcome.BUSY, str(error)
        except PluginError as error:
            return None, CallOutcome.FAILED, _error_text(error)
        except Exception as error:
            log.exception("plugin call failed", extra={"fields": {"plugin": self.config.name}})
            return None, CallOutcome.FAILED, _error_text(f"{type(error).__name__}: {error}")
        return answer, CallOutcome.ANSWERED, "" if answer is None else answer.reason

    def _why_paused(self, now: float) -> str | None:
        """Return why the plugin is not called, or None."""
        if self.heartbeat_fault is not None:
            return f"no heartbeat: {self.heartbeat_fault}"
        if self._breaker.is_open(now):
            return f"{FAILURES_MAX} failures; called again after {PAUSE_S:g} s"
        return None

    def _repeat_last(self, last: _LastCall, now_s: float) -> tuple[PluginAnswer | None, PluginCall]:
        """Return the result of the last call, because the next is not due."""
        if last.record.is_good:
            return last.answer, replace(last.record, outcome=CallOutcome.REPEATED, seconds=0.0)
        held = self._held_answer(last, now_s)
        return held, replace(last.record, seconds=0.0, is_held=held is not None)

    def _record_failure(
        self, deployment: str, now_s: float, record: PluginCall
    ) -> tuple[PluginAnswer | None, PluginCall]:
        """Record a call without an answer; return the held answer, if the configuration holds."""
        last = self._last.get(deployment, _LastCall(now_s, record))
        self._last[deployment] = last = last._replace(at_s=now_s, record=record)
        held = self._held_answer(last, now_s)
        return held, replace(record, is_held=held is not None)

    def _held_answer(self, last: _LastCall, now_s: float) -> PluginAnswer | None:
        """Return the last good answer while it is to be held, else None."""
        if self.config.on_failure != "hold" or last.good_s is None:
            return None
        return last.answer if now_s - last.good_s <= self.config.hold_s else None

    def _log_change(self, last: _LastCall | None, record: PluginCall) -> None:
        """Log the first failure, and the first answer after it."""
        was_good = last is None or last.record.is_good
        fields = {"plugin": record.plugin, "outcome": record.outcome.value, "error": record.text}
        if was_good and not record.is_good:
            log.warning("plugin failed", extra={"fields": fields})
        elif record.is_good and not was_good:
            log.info("plugin answers again", extra={"fields": {"plugin": record.plugin}})

    async def run_heartbeats(self, interval_s: float) -> None:
        """Send heartbeats until cancelled."""
        while True:
            before, self.heartbeat_fault = self.heartbeat_fault, await self._heartbeat_fault()
            if (before is None) is not (self.heartbeat_fault is None):
                fields = {"plugin": self.config.name, "error": self.heartbeat_fault or "none"}
                log.warning("plugin heartbeat changed", extra={"fields": fields})
            await asyncio.sleep(interval_s)

    async def _heartbeat_fault(self) -> str | None:
        """Send a heartbeat and return its error, or None."""
        try:
            async with asyncio.timeout(self.config.timeout_s):
                await self.port.send_heartbeat()
        except TimeoutError:
            return f"none within {self.config.timeout_s:g} s"
        except Exception as error:
            return _error_text(error) or type(error).__name__
        return None


class PluginHost:
    """All plugins of a planner. Belongs to one event loop."""

    def __init__(self, plugins: Sequence[HostedPlugin], clock: Callable[[], float]) -> None:
        """clock: monotonic seconds"""
        self._plugins = plugins
        self._clock = clock
        self._heartbeats: list[asyncio.Task[None]] = []

    def asked_stages(self, deployment: str) -> frozenset[Stage]:
        """Return the stages at which plugins of a deployment answer."""
        return frozenset(each.stage for each in self._plugins if deployment in each.deployments)

    async def answer_stage(
        self, deployment: str, context: PluginContext, by_s: float
    ) -> StageAnswers:
        """Return the answers of all plugins of a stage, in the order of the configuration.

        by_s: latest end, by the event loop's clock
        """
        context = replace(context, deployment=deployment)
        # A context with thousands of ranks takes too long for the event loop.
        body = await asyncio.to_thread(msgspec.json.encode, context)
        request = StageRequest(deployment, context.stage, body)
        asked = [
            each
            for each in self._plugins
            if each.stage is context.stage and deployment in each.deployments
        ]
        now = self._clock()
        given = await asyncio.gather(
            *(each.answer_stage(request, context, now, by_s) for each in asked)
        )
        answers = [
            _source_answer(each.config, answer)
            for each, (answer, _) in zip(asked, given, strict=True)
            if answer is not None
        ]
        # mypy cannot see that all answers to a stage have one type.
        return StageAnswers(tuple(answers), tuple(call for _, call in given))  # type: ignore[arg-type]

    def start_heartbeats(self) -> None:
        """Start the heartbeats of the plugins that have them."""
        for each in self._plugins:
            if each.config.heartbeat_s is not None:
                sending = each.run_heartbeats(each.config.heartbeat_s)
                self._heartbeats.append(asyncio.create_task(sending, name="plugin heartbeat"))

    async def close(self) -> None:
        """Stop the heartbeats and close the ways to the plugins."""
        for task in self._heartbeats:
            task.cancel()
        await asyncio.gather(*self._heartbeats, return_exceptions=True)
        for each in self._plugins:
            await each.port.close()


def _error_text(error: object) -> str:
    """Return the text of an error, of which every status can show all characters."""
    return str(error)[:ERROR_CHARS_MAX].encode("utf-8", "replace").decode()


def _source_answer(config: PluginConfig, answer: PluginAnswer) -> SourcedPrediction | Proposal:
    """Return an answer with its source, as the core reads it."""
    if isinstance(answer, Prediction):
        return SourcedPrediction(source=config.name, priority=config.priority, prediction=answer)
    return Proposal(
        source=config.name,
        priority=config.priority,
        targets=tuple(ProposedCount(t.component, t.type, t.replicas) for t in answer.targets),
        final=answer.final,
        reject=answer.reject,
    )
