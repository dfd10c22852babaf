"""Tests of the sharing of steps: in turn, a limit per turn, and a share of a CPU."""

import asyncio
import gc
import weakref
from collections import Counter
from time import monotonic

import pytest
import uvloop

from select_service.net.http_client.reading_budget import (
    CPU_SHARE,
    CREDIT_S_MAX,
    TURN_S_MAX,
    TURN_STEPS_MAX,
    ReadingBudget,
    reading_budget,
)


class Cpu:
    """CPU clock that advances when a test spends time."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def __call__(self) -> float:
        return self.spent_s


def steps_of(names, noted, count, cpu=None, cost_s=0.0):
    """Return a step for each name, which notes the name `count` times."""

    def make_step(name):
        left = count

        def step():
            nonlocal left
            noted.append(name)
            left -= 1
            if cpu is not None:
                cpu.spent_s += cost_s
            return left > 0

        return step

    return [make_step(name) for name in names]


async def turns_until(noted, count):
    """Return the number of noted names in each turn of the loop."""
    sizes, before = [], 0
    while len(noted) < count:
        await asyncio.sleep(0)
        sizes.append(len(noted) - before)
        before = len(noted)
    return sizes


async def test_every_reader_has_a_step_before_the_next_round():
    budget, noted = ReadingBudget(Cpu()), []
    for step in steps_of("abc", noted, 40):
        budget.add_step(step)
    await turns_until(noted, 120)
    assert noted == list("abc") * 40


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
async def test_a_turn_has_so_many_steps_however_many_wait(run):
    budget, noted = ReadingBudget(Cpu()), []
    for step in steps_of(range(100), noted, 3):
        budget.add_step(step)
    assert max(await turns_until(noted, 300)) == TURN_STEPS_MAX


async def test_a_turn_that_was_long_begins_no_further_step():
    cpu = Cpu()
    budget, noted = ReadingBudget(cpu), []
    for step in steps_of(range(10), noted, 1, cpu, 0.4 * TURN_S_MAX):
        budget.add_step(step)
    assert max(await turns_until(noted, 10)) == 3


async def test_over_time_reading_has_its_share_of_a_cpu():
    """The share is measured by the clock of the budget, however fast the machine is."""

    cpu = Cpu()
    begun = monotonic()
    budget, noted = ReadingBudget(cpu), []
    for step in steps_of("ab", noted, 100, cpu, TURN_S_MAX):
        budget.add_step(step)
    while len(noted) < 60:
        await asyncio.sleep(0)
        elapsed_s = monotonic() - begun
        assert cpu.spent_s <= CREDIT_S_MAX + CPU_SHARE * elapsed_s + 2 * TURN_S_MAX


async def test_a_rest_is_no_credit_beyond_its_bound():
    cpu, now = Cpu(), 0.0
    budget, noted = ReadingBudget(cpu, lambda: now), []
    now = 1e6
    for step in steps_of("a", noted, 100, cpu, CREDIT_S_MAX):
        budget.add_step(step)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(noted) == 2  # the second step is on credit


async def test_the_result_of_steps_is_that_of_the_generator():
    def counting():
        for _ in range(3):
            yield
        return 7

    def failing():
        yield
        raise ValueError("no")

    assert await reading_budget().run_steps(counting()) == 7
    with pytest.raises(ValueError, match="no"):
        await reading_budget().run_steps(failing())


async def test_steps_of_cancelled_readers_are_dropped():
    taken = Counter()

    def endless():
        try:
            while True:
                taken["step"] += 1
                yield
        finally:
            taken["end"] += 1

    asking = asyncio.create_task(reading_budget().run_steps(endless()))
    while not taken:
        await asyncio.sleep(0)
    asking.cancel()
    while not taken["end"]:
        await asyncio.sleep(0)
    before = taken["step"]
    for _ in range(10):
        await asyncio.sleep(0)
    assert taken["step"] == before


def test_a_loop_has_one_budget_which_ends_with_it():
    async def scene():
        assert reading_budget() is reading_budget()
        return reading_budget()

    first, second = asyncio.run(scene()), asyncio.run(scene())
    assert first is not second
    known = [weakref.ref(first), weakref.ref(second)]
    del first, second
    gc.collect()
    assert [each() for each in known] == [None, None]
