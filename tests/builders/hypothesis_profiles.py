"""Profiles of Hypothesis: HYPOTHESIS_PROFILE selects the share of the requested examples.

default   every change must pass this profile (scripts/test)
bounds    the same tests in machine code that checks the bounds of arrays: an error of that kind
          shows in most examples, not in a rare one
long      for runs over a long time (scripts/test_slow)
"""

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine

EXAMPLES = 60
"""Number of examples of a test that sets none."""
RUNS = 20
"""Number of runs of a state machine that sets none: a run is some fifty examples."""
STEPS = 50
SHARES = {"default": 1.0, "bounds": 0.25, "long": 30.0}
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
SLOW_DATA = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def explores(examples: int = EXAMPLES, **others: Any) -> settings:
    """Return settings with `examples` examples, scaled by the share of the profile.

    With CI in the environment the default profile uses the same examples every time, so that only a
    change can make a test fail.
    """
    given = {
        "derandomize": PROFILE == "default" and bool(os.environ.get("CI")),
        "suppress_health_check": SLOW_DATA,
        **others,
    }
    return settings(max_examples=max(1, round(examples * SHARES[PROFILE])), deadline=None, **given)


def explored(
    machine: type[RuleBasedStateMachine], runs: int = RUNS, steps: int = STEPS
) -> type[RuleBasedStateMachine.TestCase]:
    """Return the test of a state machine."""
    case = machine.TestCase
    case.settings = explores(runs, stateful_step_count=steps)
    return case
