"""Number of Python calls and files that the ordinary booking of one prompt takes."""

import sys
from collections import Counter

import pytest

from tests.builders import a_select_and_reserve, a_selector, a_worker

CALLS_MAX = 90
FILES_MAX = 30

HASHES = {"block_hashes": [1, 2], "sequence_hashes": [3, 4], "isl_tokens": 8, "token_ids": None}


def calls_of(book):
    """Counter of the Python calls of `book()`, by (file, function)."""
    calls = Counter()

    def count(frame, event, _):
        if event == "call":
            calls[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        book()
    finally:
        sys.setprofile(None)
    del calls[__file__, "calls_of.<locals>.<lambda>"]
    return calls


@pytest.fixture(params=[{}, HASHES], ids=["tokens", "hashes"])
def calls(request):
    selector = a_selector(decisions_kept=8)
    for worker_id in (1, 2):
        selector.register_worker(a_worker(worker_id))
    # The first booking of a partition sets up the load account.
    selector.select_and_reserve(a_select_and_reserve(**request.param), 0.0)
    body = a_select_and_reserve(reservation_id="r", **request.param)
    return calls_of(lambda: selector.select_and_reserve(body, 0.0))


def test_a_booking_takes_few_calls_in_few_files(calls):
    assert calls.total() <= CALLS_MAX
    assert len({file for file, _ in calls}) <= FILES_MAX


def test_a_booking_checks_its_id_and_finds_its_partition_once(calls):
    functions = Counter()
    for (_, name), n in calls.items():
        functions[name] += n
    assert functions["Ledger.check_id_free"] == 1
    assert functions["PromptResolver.find_partition"] == 1
