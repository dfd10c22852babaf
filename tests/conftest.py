"""Hooks and fixtures of all tests: Hypothesis profiles, async tests, logs of failed processes."""

import asyncio
import inspect
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from select_service.base.log_format import OWN_PACKAGES, shows_debug
from tests.builders import hypothesis_profiles, launched_process

settings.register_profile(hypothesis_profiles.PROFILE, hypothesis_profiles.explores())
settings.load_profile(hypothesis_profiles.PROFILE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first, so that no process of several works alone at the end."""
    items.sort(key=lambda item: item.path.parent.name != "simulation")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test on a new event loop.

    The runner is the argument `run` of the test, else `RUN_ASYNC` of the module, else
    `asyncio.run`.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    names = inspect.signature(pyfuncitem.function).parameters
    given = {name: pyfuncitem.funcargs[name] for name in names}
    run = given.get("run", getattr(pyfuncitem.module, "RUN_ASYNC", asyncio.run))
    run(pyfuncitem.function(**given))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    launched_process.forget_ended()


@pytest.fixture(autouse=True)
def _levels_of_logs_are_as_before() -> Iterator[None]:
    """Restore the levels of loggers, which a test or a called service may change."""
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
