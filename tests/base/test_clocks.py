"""What the times in a dump mean here."""

from select_service.base import clocks


def test_a_file_of_this_machine_is_as_old_as_the_wall_clock_says_and_no_younger_than_now():
    here = clocks.read_clocks()
    then = clocks.local_event_time(here.unix - 60, 5.0)
    assert here.monotonic - 65.5 < then < here.monotonic - 64.5
    assert clocks.local_event_time(here.unix + 60, 90.0) is None
