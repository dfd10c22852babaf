"""Tests of the local meaning of times in a dump."""

from select_service.base import clocks


def test_the_wall_clock_gives_the_age_of_a_local_file_but_no_future():
    here = clocks.read_clocks()
    then = clocks.local_event_time(here.unix - 60, 5.0)
    assert here.monotonic - 65.5 < then < here.monotonic - 64.5
    assert clocks.local_event_time(here.unix + 60, 90.0) is None
