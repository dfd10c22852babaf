"""Selector with an observer of its traffic."""

from itertools import count, zip_longest

import msgspec

from select_service.core.traffic.observation_view import build_observation
from tests.builders import a_select_and_reserve, a_selector, a_worker
from tests.builders.selector_scenes import KEY
from tests.builders.steps import result_of

BLOCK = 4


class Observed:
    """Selector with observed traffic; prompts share no block, so each uncached length is known."""

    def __init__(self, workers=(1, 2), roles=(), **config):
        """roles: roles of the workers; None means no role"""
        self.selector = a_selector(**config)
        for worker_id, role in zip_longest(workers, roles):
            self.selector.register_worker(a_worker(worker_id, role=role))
        self.names = map(str, count())
        self._tokens = count(1)

    def prompt(self, n):
        return [next(self._tokens) for _ in range(n)]

    def step(self, now):
        while self.selector.followers.traffic.close_slots(now):
            pass

    def reserve(self, now, tokens=8, worker_id=None, **fields):
        """Book a prompt; return the reservation id."""
        name = next(self.names)
        if worker_id is not None:
            fields["pinned_worker"] = {"worker_id": worker_id, "dp_rank": 0}
        self.selector.select_and_reserve(
            a_select_and_reserve(0, reservation_id=name, token_ids=self.prompt(tokens), **fields),
            now,
        )
        return name

    def observe(self, window_s, now, key=KEY):
        """Return the observation as a client decodes it."""
        selector = self.selector
        state_of = None if selector.health is None else selector.health.state_of
        engines = selector.gate.busy_check.engines
        steps = build_observation(selector.followers.traffic, key, window_s, engines, state_of, now)
        return msgspec.json.decode(msgspec.json.encode(result_of(steps)))
