"""Tests of the soak run in one short period, and of its checks with violations to find."""

import time
from types import SimpleNamespace

import pytest

from tests.proofs.soak import play
from tests.proofs.soak_checks import Faults, HoldingCheck, ValueCheck, memory_trend
from tests.proofs.soak_clients import EndedReservation, HeldReservation
from tests.proofs.soak_fleet import HYBRID

PERIOD_S = 10.0


@pytest.mark.process
def test_a_short_run_ends_without_a_violation(tmp_path, capsys):
    assert play(tmp_path, 0.0, PERIOD_S, 4) == 0, capsys.readouterr().out
    assert "verdict: 0 violations" in capsys.readouterr().out


class ListedRows:
    """Replica that lists the given rows of id, worker and rank."""

    def __init__(self, *rows):
        self.rows, self.freed = list(rows), []

    def get(self, path):
        if path.startswith("/reservations"):
            fields = ("reservation_id", "worker_id", "dp_rank")
            rows = [dict(zip(fields, row, strict=True)) for row in self.rows]
            return 200, {"reservations": rows, "next": None}
        loads = [
            {"worker_id": n, "dp_rank": 0, "active_requests": sum(row[1] == n for row in self.rows)}
            for n in (1, 2)
        ]
        return 200, [{"model_name": "m", "loads": loads}]

    def free(self, name):
        self.freed.append(name)


@pytest.fixture
def no_settle_time(monkeypatch):
    monkeypatch.setattr("tests.proofs.soak_checks.SETTLE_S_MAX", 0.0)


def run_holding_check(replicas, *held, ended=(), faults=None):
    """Return the violations and the explained losses for replicas beside clients' reservations."""
    clients = SimpleNamespace(
        held={each.name: each for each in held}, ended={each.held.name: each for each in ended}
    )
    fleet = SimpleNamespace(replicas=replicas, elder=replicas[0])
    check = HoldingCheck(fleet, clients, faults or Faults())
    check.run()
    return [text.split(" ")[0] for text in check.violations], check.explained


def a_holding(name="x", by=None):
    return HeldReservation(name, (1,), by, time.monotonic())


def test_equal_replicas_and_clients_are_no_violation():
    assert run_holding_check([ListedRows(("x", 1, 0))] * 2, a_holding()) == ([], {})


@pytest.mark.usefixtures("no_settle_time")
@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ([], [], {"lost"}),
        ([("x", 1, 0), ("x", 1, 0)], [("x", 1, 0)], {"doubled", "loads"}),
        ([("x", 1, 0), ("y", 1, 0)], [("x", 1, 0), ("y", 1, 0)], {"left"}),
        ([("x", 1, 0)], [("x", 2, 0)], {"replicas", "loads"}),
    ],
)
def test_a_difference_is_found(first, second, found):
    over = EndedReservation(a_holding("y"), time.monotonic(), ended_by=object())
    replicas = [ListedRows(*first), ListedRows(*second)]
    assert set(run_holding_check(replicas, a_holding(), ended=[over])[0]) == found


def test_an_end_that_no_replica_knew_is_found():
    unknown = EndedReservation(a_holding("y"), time.monotonic())
    assert run_holding_check([ListedRows()], ended=[unknown])[0] == ["unknown"]


def test_losses_explained_by_faults_are_counted():
    faults, victim = Faults(), object()
    faults.note_lost_worker(1, "with_engine")
    assert run_holding_check([ListedRows()], a_holding(), faults=faults) == ([], {"with_engine": 1})
    faults = Faults()
    faults.note_kill(victim)
    assert run_holding_check([ListedRows()], a_holding(by=victim), faults=faults) == (
        [],
        {"unpublished": 1},
    )


class ExactRanks:
    """Replica with hybrid ranks that all hold `tokens` tokens of every prompt."""

    def __init__(self, tokens, **fields):
        self._row = {"reusable_tokens": tokens, "device_blocks": 0, **fields}

    def get(self, path):
        return 200, {"kv_events": {"0": {"state": "connected", "last_sequence": 0}}}

    def post(self, path, body):
        return 200, {"workers": [{"worker_id": each, **self._row} for each in HYBRID]}


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [({}, True), ({"certainty": "exact"}, True), ({"certainty": "at_most"}, False)],
)
def test_a_wrong_exact_value_is_a_violation(fields, wrong):
    engine = SimpleNamespace(process=SimpleNamespace(last_seq=0), truth=lambda prompt: 64)
    fleet = SimpleNamespace(
        replicas=[ExactRanks(128, **fields)], hybrid=dict.fromkeys(HYBRID, engine)
    )
    check = ValueCheck(fleet)
    check.run()
    assert bool(check.violations) == wrong


def test_memory_is_flat_until_it_grows():
    flat = [(60.0 * n, 150.0 + n % 3) for n in range(100)]
    assert memory_trend(flat, 600.0).is_flat
    growing = [(60.0 * n, 150.0 + n * 0.2) for n in range(100)]
    trend = memory_trend(growing, 600.0)
    assert trend.slope_mib_h == pytest.approx(12.0)
    assert not trend.is_flat
    assert memory_trend(flat[:2], 0.0) is None
