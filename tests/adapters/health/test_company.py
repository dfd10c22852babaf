"""Tests of contention between probes, in simulated time."""

import contextlib

import pytest

from select_service.adapters.health.probe_contention import ProbeContention


class Scene:
    def __init__(self):
        self.now = 100.0
        self.company = ProbeContention(lambda: self.now)


def test_only_the_time_that_others_were_there_counts():
    scene = Scene()
    with scene.company.start_span("a") as first:
        scene.now += 1.0
        with scene.company.start_span("b") as elsewhere, scene.company.start_span("a") as second:
            scene.now += 0.1
        scene.now += 1.0
    assert first.waited_s == pytest.approx(0.05)
    assert second.waited_s == pytest.approx(0.05)
    assert elsewhere.waited_s == 0.0


def test_four_together_wait_for_three_quarters_of_the_time():
    scene = Scene()
    with contextlib.ExitStack() as stack:
        visits = [stack.enter_context(scene.company.start_span("a")) for _ in range(4)]
        scene.now += 2.0
    assert [visit.waited_s for visit in visits] == pytest.approx([1.5] * 4)


def test_a_failed_probe_no_longer_counts():
    scene = Scene()
    with contextlib.suppress(OSError), scene.company.start_span("a"):
        raise OSError
    with scene.company.start_span("a") as alone:
        scene.now += 1.0
    assert alone.waited_s == 0.0
