"""Shared by every test: how much Hypothesis explores, and what a failed test shows of processes."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from scripts.processes import launched_process
from select_service.base.log_format import OWN_PACKAGES, shows_debug
from tests import hypothesis_profiles

settings.register_profile(hypothesis_profiles.PROFILE, hypothesis_profiles.explores())
settings.load_profile(hypothesis_profiles.PROFILE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no process of several works on alone in the end."""
    items.sort(key=lambda item: item.path.parent.name != "simulation")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    launched_process.forget_ended()


@pytest.fixture(autouse=True)
def _levels_of_logs_are_as_before() -> Iterator[None]:
    """Whoever changes them: a test, or a service that is asked to."""
    loggers = [logging.getLogger(name) for name in (*OWN_PACKAGES, "uvicorn")]
    levels, shown = [logger.level for logger in loggers], shows_debug[0]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    shows_debug[0] = shown


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    report: pytest.TestReport = yield
    if report.failed:
        report.sections.extend(launched_process.known_logs())
    return report
