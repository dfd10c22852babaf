"""The same fleets with the settings that a service begins with, in real time: four minutes.

scripts/test_slow tests/process/test_engine_faults_in_time.py -s      # prints the table
"""

import time

import pytest

from tests.engines.fleets import CASES, SIZE, SLOW_S, begun
from tests.engines.served import ServedEngines
from tests.process.in_thread import InThread

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1200)]

INTERVAL_S, TIMEOUT_S, CONFIRM_S, ATTEMPTS, PAUSE_S = 30.0, 5.0, 2.0, 3, 0.5
LEARNT_AFTER = 6
"""Checks."""
CHECK_S = {"hang": ATTEMPTS * TIMEOUT_S + 2 * PAUSE_S, "slow": SLOW_S}
"""How long one takes; others are answered at once, three times."""
LOOK_S = 0.2
GRACE_S = 2.0
"""For how fast this machine is, and for how often it is looked."""


def bound_s(name):
    return INTERVAL_S + 2 * (CONFIRM_S + CHECK_S.get(name, 2 * PAUSE_S))


def times_until_out(fleets, seconds):
    """Seconds by case; who stays is not there."""
    since, out = time.monotonic(), {}
    while (passed := time.monotonic() - since) < seconds:
        for name, fleet in fleets.items():
            if name not in out and fleet.is_out():
                out[name] = passed
        time.sleep(LOOK_S)
    return out


def test_every_fault_is_out_of_rotation_in_time():
    with ServedEngines() as engines, InThread("--health-checks=on") as service:
        fleets = begun(service, engines, CASES)
        time.sleep(LEARNT_AFTER * INTERVAL_S)
        for fleet in fleets.values():
            fleet.learns(LEARNT_AFTER)
            fleet.begin()
        out = times_until_out(fleets, max(map(bound_s, CASES)) + GRACE_S)
        for name, fleet in fleets.items():
            cause = fleet.sick()["cause"]
            print(f"{name:12} {out.get(name, float('nan')):6.1f} of {bound_s(name):.0f} s, {cause}")
        assert out.keys() == {name for name, case in CASES.items() if case.causes}
        assert {name: t for name, t in out.items() if t > bound_s(name) + GRACE_S} == {}
        for fleet in fleets.values():
            states = [rank["state"] for rank in fleet.others()]
            assert states == ["healthy"] * (SIZE - 1)
