"""Tests of the same fleets with default settings in real time: four minutes.

scripts/test_slow tests/process/test_engine_faults_in_time.py -s      # prints the table
"""

import time

import pytest

from tests.builders.in_thread import InThread
from tests.builders.served_engines import ServedEngines
from tests.process.engine_fleets import CASES, SIZE, SLOW_S, start_fleets

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1200)]

INTERVAL_S, TIMEOUT_S, CONFIRM_S, ATTEMPTS, PAUSE_S = 30.0, 5.0, 2.0, 3, 0.5
LEARNT_AFTER = 6
"""Number of checks before the fault."""
CHECK_S = {"hang": ATTEMPTS * TIMEOUT_S + 2 * PAUSE_S, "slow": SLOW_S}
"""Duration of one check by fault, seconds; checks of other faults get three answers at once."""
LOOK_S = 0.2
GRACE_S = 2.0
"""Allowance for the speed of this machine and the polling interval, seconds."""


def bound_s(name):
    return INTERVAL_S + 2 * (CONFIRM_S + CHECK_S.get(name, 2 * PAUSE_S))


SHORT = "[{prompt: [11, 12, 13, 14, 15]}]"
"""Short prompt for decoders, since all engines and the service share one processor."""


def times_until_out(fleets, begun_at, seconds):
    """Return the seconds until ejection by case; kept ranks are absent."""
    out = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, fleet in fleets.items():
            if name not in out and fleet.is_out():
                out[name] = time.monotonic() - begun_at[name]
        time.sleep(LOOK_S)
    return out


def test_every_fault_is_out_of_rotation_in_time(tmp_path):
    path, begun_at = tmp_path / "canaries.yaml", {}
    path.write_text("".join(f"{n}: {SHORT}\n" for n, case in CASES.items() if case.decodes))
    flags = ("--health-checks=on", "--canary-config", str(path))
    with ServedEngines() as engines, InThread(*flags) as service:
        fleets = start_fleets(service, engines, CASES)
        time.sleep(LEARNT_AFTER * INTERVAL_S)
        for fleet in fleets.values():
            fleet.wait_for_checks(LEARNT_AFTER)
        for name, fleet in fleets.items():
            begun_at[name] = time.monotonic()
            fleet.begin()
        out = times_until_out(fleets, begun_at, max(map(bound_s, CASES)) + GRACE_S)
        for name, fleet in fleets.items():
            cause = fleet.sick()["cause"]
            print(f"{name:12} {out.get(name, float('nan')):6.1f} of {bound_s(name):.0f} s, {cause}")
        assert out.keys() == {name for name, case in CASES.items() if case.causes}
        assert {name: t for name, t in out.items() if t > bound_s(name) + GRACE_S} == {}
        for fleet in fleets.values():
            states = [rank["state"] for rank in fleet.others()]
            assert states == ["healthy"] * (SIZE - 1)
