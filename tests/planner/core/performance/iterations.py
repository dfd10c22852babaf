"""Engines simulated by iteration, and the times that a selector measures.

The module is independent of the replay's fluid engine. Times are measured as by the selector. A
prompt takes from its booking to the end of its last prefill iteration. An output block takes from
the block before, with prefills in between. Load is all booked work, including waiting prompts.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from random import Random
from typing import TypeVar

from select_service.planner.core.tick_input import (
    DecodeTiming,
    EngineLimits,
    PrefillTiming,
    TrafficWindow,
)
from select_service.planner.replay.simulated_engine import EngineSpeed

BLOCK = 16
SAMPLES_MAX = 256
FAST = EngineSpeed()
_Sample = TypeVar("_Sample")


@dataclass(eq=False)
class Prompt:
    at_s: float
    isl: int
    osl: int
    left: int = 0
    ahead: int = 0
    given: int = 0
    spoke_s: float = 0.0

    @property
    def booked_kv(self) -> int:
        return self.isl + self.given // BLOCK * BLOCK


@dataclass(eq=False)
class Iterating:
    """Engine.

    end_s: end of the current iteration; None means idle
    """

    speed: EngineSpeed
    chunk_max: int
    jitter: float
    rng: Random
    booked: list[Prompt] = field(default_factory=list)
    queue: deque[Prompt] = field(default_factory=deque)
    joining: list[Prompt] = field(default_factory=list)
    live: list[Prompt] = field(default_factory=list)
    batch: list[tuple[Prompt, int]] = field(default_factory=list)
    end_s: float | None = None

    @property
    def to_prefill(self) -> int:
        """Return the tokens of unfinished prompts; their progress is unknown."""
        return sum(each.isl for each in self.queue)

    def prefill(self, prompt: Prompt, now: float) -> None:
        prompt.ahead, prompt.left = self.to_prefill, prompt.isl
        self.booked.append(prompt)
        self.queue.append(prompt)
        self._wake(now)

    def decode(self, prompt: Prompt, now: float) -> None:
        if prompt not in self.booked:
            self.booked.append(prompt)
        self.joining.append(prompt)
        self._wake(now)

    def _wake(self, now: float) -> None:
        if self.end_s is None:
            self.begin(now)

    def begin(self, now: float) -> None:
        """Begin the next iteration, if any work is left."""
        self.live += self.joining
        self.joining = []
        self.batch, room = [], max(1, self.chunk_max - len(self.live))
        for prompt in self.queue:
            if room > 0:
                self.batch.append((prompt, min(room, prompt.left)))
                room -= prompt.left
        self.end_s = now + self._seconds() if self.live or self.batch else None

    def _seconds(self) -> float:
        speed = self.speed
        kv = sum(each.isl + each.given for each in self.live)
        seconds = speed.base_s + speed.per_kv_token_s * kv + speed.per_request_s * len(self.live)
        seconds += speed.per_prefill_token_s * sum(tokens for _, tokens in self.batch)
        return seconds * max(0.5, self.rng.gauss(1.0, self.jitter))

    def finish(self, now: float) -> tuple[list[Prompt], list[DecodeTiming]]:
        """Return the prompts with a first token and the blocks of the iteration that ends now."""
        blocks = []
        for each in self.live:
            each.given += 1
            if each.given % BLOCK == 0:
                kv = sum(other.booked_kv for other in self.booked)
                seconds = (now - each.spoke_s) / BLOCK
                blocks.append(DecodeTiming(len(self.booked), kv, seconds))
                each.spoke_s = now
        for each in [one for one in self.live if one.given >= one.osl]:
            self.live.remove(each)
            self.booked.remove(each)
        firsts = []
        for prompt, tokens in self.batch:
            prompt.left -= tokens
            if prompt.left == 0:
                self.queue.remove(prompt)
                prompt.spoke_s = now
                firsts.append(prompt)
        return firsts, blocks


@dataclass
class Load:
    """Load on a fleet.

    engines: number of engines per role
    rate: requests a second for all engines
    split: whether prefill has its own engines
    """

    rate: float
    split: bool
    speed: EngineSpeed = FAST
    jitter: float = 0.0
    engines: int = 3
    chunk_max: int = 8192
    window_s: float = 60.0
    seconds: float = 300.0

    @property
    def limits(self) -> EngineLimits:
        return EngineLimits(
            max_num_batched_tokens=self.chunk_max, max_num_seqs=256, max_kv_tokens=400_000
        )


def observed(load: Load, seed: int = 1) -> Iterator[tuple[float, TrafficWindow]]:
    """Yield the windows of a run, each with its end."""
    rng = Random(seed)
    first = [_engine(load, rng) for _ in range(load.engines)]
    second = [_engine(load, rng) for _ in range(load.engines)] if load.split else first
    engines = first + (second if load.split else [])
    prompts: list[PrefillTiming] = []
    blocks: list[DecodeTiming] = []
    arrival, due = rng.expovariate(load.rate), load.window_s
    while due <= load.seconds:
        ends = [each.end_s for each in engines if each.end_s is not None]
        now = min([arrival, due, *ends])
        if now == due:
            yield now, _traffic(load, prompts, blocks)
            prompts, blocks, due = [], [], due + load.window_s
        elif now == arrival:
            _least(first).prefill(_prompt(now, rng), now)
            arrival += rng.expovariate(load.rate)
        else:
            for engine in [each for each in engines if each.end_s == now]:
                firsts, ended = engine.finish(now)
                blocks += ended
                for one in firsts:
                    prompts.append(PrefillTiming(one.isl, now - one.at_s, one.ahead))
                    if load.split:
                        engine.booked.remove(one)
                        _least(second).decode(one, now)
                    else:
                        engine.joining.append(one)
                engine.begin(now)


def _traffic(load: Load, prompts: list[PrefillTiming], blocks: list[DecodeTiming]) -> TrafficWindow:
    return TrafficWindow(
        duration_s=load.window_s,
        prefill_samples=tuple(_some(prompts)),
        decode_samples=tuple(_some(blocks)),
    )


def _engine(load: Load, rng: Random) -> Iterating:
    return Iterating(load.speed, load.chunk_max, load.jitter, rng)


def _prompt(now: float, rng: Random) -> Prompt:
    return Prompt(now, int(rng.lognormvariate(7.5, 0.8)) + 10, rng.randint(20, 300))


def _least(engines: list[Iterating]) -> Iterating:
    return nsmallest(1, engines, key=lambda each: (each.to_prefill, len(each.booked)))[0]


def _some(samples: list[_Sample]) -> list[_Sample]:
    if len(samples) <= SAMPLES_MAX:
        return samples
    return [samples[i * len(samples) // SAMPLES_MAX] for i in range(SAMPLES_MAX)]
