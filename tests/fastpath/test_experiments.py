"""Tests that experiments measure the bookings and completions of the fast path, too."""

from select_service.core.analysis.comparison.switchback_experiment import UNMEASURED_S
from tests.fastpath.prompts import post
from tests.fastpath.requests import AIOHTTP, request
from tests.fastpath.test_bookings import life_of, select_and_reserve, services

BEGIN = post("/experiments", {"policies": ["work", "reference"], "slot_s": 120})


def test_bookings_of_the_fast_path_are_measured_once() -> None:
    with services() as two:
        two.send(select_and_reserve("before"))
        for side in (two.fast, two.ordinary):
            side.send(BEGIN)
            (experiment,) = side.selector.followers.evaluation.experiments
            experiment.slots[0].began_at -= UNMEASURED_S
        answered = two.answered
        for data in [*life_of("a"), *life_of("b"), select_and_reserve("c")]:
            assert two.send(data).startswith(b"HTTP/1.1 20")
        two.send(request("DELETE /reservations/c", AIOHTTP))
        two.send(request("POST /reservations/before/prefill_complete", AIOHTTP))
        assert two.answered == answered + 2 * len(life_of("a")) + 3
        for side in (two.fast, two.ordinary):
            (experiment,) = side.selector.followers.evaluation.experiments
            assert (experiment.slots[0].requests, experiment.unreported) == (2, 1)
            assert experiment.slots[0].total_s > 0.0
            side.send(request("DELETE /experiments/1", AIOHTTP))
            assert side.selector.ledger.listeners == []
            assert not experiment.is_running
        for data in life_of("d"):
            assert two.send(data).startswith(b"HTTP/1.1 20")
