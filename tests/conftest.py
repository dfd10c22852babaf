"""Shared by every test: how much Hypothesis explores, and what a failed test shows of processes."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.process import launched

SLOW_DATA = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "default", deadline=None, max_examples=60, suppress_health_check=SLOW_DATA
)
settings.register_profile(
    "ci", deadline=None, max_examples=60, derandomize=True, suppress_health_check=SLOW_DATA
)
settings.register_profile(
    "thorough", deadline=None, max_examples=2000, suppress_health_check=SLOW_DATA
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default")
)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    launched.forget_ended()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    report: pytest.TestReport = yield
    if report.failed:
        report.sections.extend(launched.known_logs())
    return report
