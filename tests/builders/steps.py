"""Work that is done in steps: to its end, or with the cost of every step."""

import sys
from pathlib import Path

import select_service

PACKAGE = str(Path(select_service.__file__).parent) + "/"
"""The folder of the package: the folder of the checkout may have the same name."""


def result_of(steps):
    """What a generator returns in the end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def lines_of(verb):
    """Lines of the service that a call runs: its work, whatever the speed of the machine."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line" and frame.f_code.co_filename.startswith(PACKAGE)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        verb()
    finally:
        sys.settrace(before)
    return count


def longest_step(steps):
    """Most lines that an iterator runs before it gives or returns something."""
    end = object()
    found, step = [], None

    def go_on():
        nonlocal step
        step = next(steps, end)

    while step is not end:
        found.append(lines_of(go_on))
    return max(found)
