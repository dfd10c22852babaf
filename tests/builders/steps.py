"""Generators of work in steps: the result, or the cost of every step."""

import sys
from pathlib import Path

import select_service

PACKAGE = str(Path(select_service.__file__).parent) + "/"
"""Folder of the package: the folder of the checkout may have the same name."""


def result_of(steps):
    """Return the result of a generator."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def lines_of(verb):
    """Return how many lines of the service a call runs: its work, whatever the machine's speed."""
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
    """Return the number of lines in the longest step of an iterator."""
    end = object()
    found, step = [], None

    def go_on():
        nonlocal step
        step = next(steps, end)

    while step is not end:
        found.append(lines_of(go_on))
    return max(found)
