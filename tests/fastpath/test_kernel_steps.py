"""Tests that the handler has a step for every outcome that the kernel can request."""

from select_service.fastpath import serve_layout
from select_service.fastpath.service_handler import ServiceHandler


def test_every_outcome_that_requests_a_step_has_one():
    numbers = [
        number
        for name, number in vars(serve_layout).items()
        if name.isupper() and isinstance(number, int) and number < serve_layout.INCOMPLETE
    ]
    assert sorted(numbers) == sorted(ServiceHandler._STEPS)
