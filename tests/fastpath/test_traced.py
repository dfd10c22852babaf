"""Tests of the requests that compiled code leaves to the tracing path."""

import pytest

from select_service.fastpath.tracing_filter import TracingFilter
from select_service.metrics.tracing import TracingCounts
from tests.fastpath.requests import request

IDS = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
BODY = {"model_name": "m", "token_ids": [1]}
CALLERS = (True, False, False)
"""Sampling decisions of callers that the filter may sample."""


class Answers:
    """Handler that answers every request."""

    end = 0

    def answer_request(self, data, at, socket_fd=-1):
        self.end = len(data)
        return b"answer"


def is_answered(data, may_sample=CALLERS, at=0):
    counts = TracingCounts()
    traced = TracingFilter(Answers(), counts, may_sample)
    answer = traced.answer_request(data, at)
    assert counts.aside == (answer is None)
    assert traced.end == (0 if answer is None else len(data))
    return answer == b"answer"


def select(*headers, line="POST /select"):
    return request(line, headers, BODY)


@pytest.mark.parametrize("name", ["traceparent", "Traceparent", "TRACEPARENT", "tRACEparent"])
@pytest.mark.parametrize(
    ("flags", "answered"), [("00", True), ("02", True), ("01", False), ("03", False), ("0f", False)]
)
def test_the_flag_of_the_caller_decides(name, flags, answered):
    assert is_answered(select((name, f"00-{IDS}-{flags}"))) == answered
    assert is_answered(select(("Host", "h"), (name, f"00-{IDS}-{flags}"))) == answered


def test_a_request_without_a_readable_traceparent_counts_as_without_a_caller():
    for headers in ((), (("traceparent", "00-x-y-01"),), (("x-traceparent", f"00-{IDS}-01"),)):
        assert is_answered(select(*headers))
        assert not is_answered(select(*headers), (False, False, True))


def test_a_sampler_may_trace_a_request_that_its_caller_does_not_sample():
    unsampled = select(("traceparent", f"00-{IDS}-00"))
    assert not is_answered(unsampled, (False, True, False))
    assert is_answered(unsampled, (True, False, True))


@pytest.mark.parametrize(
    ("line", "answered"),
    [
        ("POST /select", False),
        ("POST /select_and_reserve", False),
        ("POST /reservations", False),
        ("POST /reservations/a/renew", True),
        ("DELETE /reservations/a", True),
    ],
)
def test_only_traced_routes_leave_the_fast_path(line, answered):
    assert is_answered(select(("traceparent", f"00-{IDS}-01"), line=line)) == answered


def test_nothing_behind_the_head_counts():
    body = f'{{"model_name":"m\ntraceparent: 00-{IDS}-01"}}'.encode()
    assert is_answered(request("POST /select", (), body))
    first, second = select(), select(("traceparent", f"00-{IDS}-01"))
    assert is_answered(first + second)
    assert not is_answered(first + second, at=len(first))


def test_a_head_that_is_not_complete_is_not_judged():
    whole = select(("traceparent", f"00-{IDS}-01"))
    head = whole.index(b"\r\n\r\n")
    assert is_answered(whole[: head + 3])
    assert not is_answered(whole[: head + 4])
