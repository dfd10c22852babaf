"""How much Hypothesis explores: the profile in HYPOTHESIS_PROFILE says how much of what is asked.

default   what every change must pass (scripts/test)
bounds    the same tests once more in machine code that checks the bounds of arrays: what it
          looks for shows in most examples, not in a rare one
long      what is left running for a long time (scripts/test_slow)
"""

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine

EXAMPLES = 60
"""Of a test that does not say how many."""
RUNS = 20
"""Of a state machine that does not say how many: each is some fifty examples in one."""
STEPS = 50
SHARES = {"default": 1.0, "bounds": 0.25, "long": 30.0}
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
SLOW_DATA = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def explores(examples: int = EXAMPLES, **others: Any) -> settings:
    """So many examples by default, and as many more or fewer as the profile says.

    With CI in the environment the default is the same examples every time, so that only a change
    can make a test fail.
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
    """The test of a state machine."""
    case = machine.TestCase
    case.settings = explores(runs, stateful_step_count=steps)
    return case
