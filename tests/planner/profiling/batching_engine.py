"""Engine with continuous batching in virtual time, in place of the client of a real engine."""

from typing import NamedTuple

from select_service.planner.profiling.engine_probe import ReportedLimits
from select_service.planner.profiling.sweep import StreamTimes


class Pace(NamedTuple):
    """Seconds of an iteration: base, by prompt token, by KV token and by decoding request."""

    base: float = 0.005
    token: float = 0.00002
    kv: float = 0.0000002
    request: float = 0.0003


class BatchingEngine:
    """Engine that computes a prompt per iteration, beside the running answers."""

    def __init__(self, pace: Pace | None = None, facts: ReportedLimits | None = None) -> None:
        self.pace = pace or Pace()
        self.facts = facts or ReportedLimits("m", 8192, 200_000)
        self.model: str | None = "m"
        self.asked: list[tuple[int, int, int]] = []
        self.now = 0.0

    async def read_facts(self) -> ReportedLimits:
        return self.facts

    async def time_answers(
        self, length: int, answer_tokens: int, requests: int
    ) -> list[StreamTimes]:
        self.asked.append((length, answer_tokens, requests))
        sent = self.now
        times: list[list[float]] = [[] for _ in range(requests)]
        started = 0
        while any(len(each) < answer_tokens for each in times):
            running = [each for each in times[:started] if len(each) < answer_tokens]
            prompt = length if started < requests else 0
            kv = sum(length + len(each) for each in running)
            pace = self.pace
            self.now += pace.base + pace.token * prompt + pace.kv * kv
            self.now += pace.request * len(running)
            for each in running:
                each.append(self.now)
            if prompt:
                times[started].append(self.now)
                started += 1
        return [StreamTimes(sent, tuple(each), len(each)) for each in times]

    async def close(self) -> None:
        pass
