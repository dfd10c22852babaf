"""Tests that callers get answers or errors in time, without double bookings, during outages."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from select_service.client import SelectorError
from select_service.client.selector_pool import EXCLUSION_S_MAX
from tests.builders.hypothesis_profiles import explores
from tests.client.world import (
    URLS,
    World,
    bad_gateway,
    client,
    is_without_debts,
    late,
    lose_answer,
    lose_request,
    refuse,
    run,
)

PROMPT = list(range(8))
DEADLINE_S = 4.0
TTL_S = 200.0
SLACK_S = 0.1
SETTLED_S = 3 * EXCLUSION_S_MAX
LATE_S = 8.0


TROUBLES = {
    "down": None,
    "loses answers": lose_answer,
    "loses requests": lose_request,
    "bad gateway": bad_gateway,
    "late": late(LATE_S),
    "slow": late(1.0),
    "shuts down": refuse(503, "shutting_down"),
    "busy": refuse(503, "queue_full", "1"),
    "full": refuse(503, "capacity_exceeded"),
}


class Trouble(World):
    """World with selectors that misbehave for some time."""

    def __init__(self, knows_repeats):
        super().__init__(knows_repeats=knows_repeats, ttl_s=TTL_S)
        self.trouble = {}
        self.callers = {}
        """Caller of the booking, by name of a reservation."""

    async def send(self, url, asked, timeout_s):
        wrong = self.trouble.get(url)
        if wrong is not None:
            self.next[url] = [TROUBLES[wrong]]
        return await super().send(url, asked, timeout_s)

    def answer(self, url, asked):
        before = len(self.admissions)
        answer = super().answer(url, asked)
        for name in self.admissions[before:]:
            caller = asked.headers["traceparent"]
            names = {each for each, by in self.callers.items() if by == caller}
            assert names <= {name}, "booked twice"
            self.callers[name] = caller
        return answer

    async def play(self, urls, begin_s, kind, seconds):
        await asyncio.sleep(begin_s)
        if kind == "down":
            self.down.update(urls)
        else:
            self.trouble.update(dict.fromkeys(urls, kind))
        await asyncio.sleep(seconds)
        self.down.difference_update(urls)
        for url in urls:
            self.trouble.pop(url, None)


async def one_caller(world, selector, number, begin_s, seconds):
    """Return whether a caller was served."""
    await asyncio.sleep(begin_s)
    begun = world.now
    headers = {"traceparent": f"caller-{number}"}
    try:
        async with selector.lease(token_ids=PROMPT, headers=headers) as lease:
            assert world.now - begun <= DEADLINE_S + SLACK_S
            assert world.callers[lease.reservation_id] == headers["traceparent"]
            await asyncio.sleep(seconds / 2)
            lease.tokens(10)
            await asyncio.sleep(seconds / 2)
            assert lease.reservation_id in world.live()
    except SelectorError:
        assert world.now - begun <= DEADLINE_S + SLACK_S
        return False
    return True


LATE = ("late", "slow")
"""Troubles after which a request may arrive after its own free call; then the booking expires."""


def troubles_of(kinds):
    which = st.sampled_from([URLS, URLS, URLS, *((url,) for url in URLS)])
    begin_s, seconds = st.integers(0, 5).map(float), st.integers(1, 30).map(float)
    return st.lists(st.tuples(which, begin_s, st.sampled_from(kinds), seconds), max_size=6)


IN_TIME = sorted(set(TROUBLES).difference(LATE))
LASTING = st.integers(0, 20) | st.sampled_from([TTL_S / 2, TTL_S, 3 * TTL_S])
CALLER = st.tuples(st.integers(0, 20).map(float), LASTING)


@explores(200)
@given(
    troubles_of(IN_TIME) | troubles_of(sorted(TROUBLES)),
    st.lists(CALLER, min_size=1, max_size=20),
    st.booleans(),
)
def test_every_caller_gets_a_result_and_no_booking_stays(troubles, callers, knows_repeats):
    async def main():
        world = Trouble(knows_repeats)
        async with client(world, deadline_s=DEADLINE_S, ttl_s=TTL_S) as selector:
            playing = [asyncio.ensure_future(world.play(*each)) for each in troubles]
            asking = (
                one_caller(world, selector, number, *each) for number, each in enumerate(callers)
            )
            served = await asyncio.gather(*asking)
            await asyncio.gather(*playing)
            world.next.clear()
            if not troubles:
                assert all(served)
            blocks = len(world.calls("/output_block"))
            assert blocks <= 2 * len(callers), "told twice"
            await asyncio.sleep(SETTLED_S)
            if not any(kind in LATE for _, _, kind, _ in troubles):
                assert not world.booked, "not freed, though it may have expired"
            await asyncio.sleep(TTL_S)
            assert not world.live()
            assert is_without_debts(selector)
            async with selector.lease(token_ids=[1], headers={"traceparent": "last"}) as lease:
                assert lease.booked

    run(main())
