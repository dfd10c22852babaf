"""Tests of the machine facts and the compared services of the benchmark suite."""

import os
import time

import pytest

from scripts.bench.services_under_test import process_cpu_s, reference_service
from scripts.bench.suite.machine_facts import TICKS, Ticks, noise_between, read_ticks
from scripts.bench.suite.measurement_order import MeasurementExtent, RowDepth
from scripts.bench.suite.reference_environment import of_python

STAT = """\
cpu  100 10 50 800 5 3 2 30 7 1
cpu0 60 6 30 300 5 3 2 20 7 1
cpu1 40 4 20 500 0 0 0 10 0 0
intr 12345 0
"""


def test_ticks_are_those_of_all_cpus_and_of_one():
    """User time already includes the time of guests."""
    assert read_ticks(STAT, 0) == Ticks(all=1000, stolen=30, busy=96)
    assert read_ticks(STAT, 1).busy == 64


def test_noise_is_stolen_time_and_foreign_use_of_the_server_cpu():
    before, after = Ticks(1000, 30, 100), Ticks(1000 + 4 * TICKS, 30 + TICKS, 100 + 2 * TICKS)
    noise = noise_between(before, after, wall_s=4.0, server_cpu_s=1.0)
    assert (noise.steal_percent, noise.others_percent) == (25.0, 25.0)


def test_a_server_without_a_cpu_of_its_own_has_no_others():
    noise = noise_between(Ticks(0, 0, 0), Ticks(100, 0, 100), 1.0, None)
    assert noise.others_percent is None


def test_ticks_that_did_not_move_are_no_noise():
    noise = noise_between(Ticks(5, 1, 1), Ticks(5, 1, 1), 0.001, 0.5)
    assert (noise.steal_percent, noise.others_percent) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("version", "id_field"), [("1.3.1", "reservation_id"), ("1.6.1", "selection_id")]
)
def test_reservation_ids_use_the_field_of_the_reference_version(version, id_field, monkeypatch):
    monkeypatch.setattr(
        "scripts.bench.suite.reference_environment.installed_version", lambda *_: version
    )
    found = of_python("/a/python")
    assert (found.name, found.id_field, found.is_ours) == (version, id_field, False)


def test_the_reference_logs_no_line_for_every_selection():
    assert reference_service("/a/python").variables == {"DYN_LOG": "warn"}


def test_variables_and_flags_are_added_to_a_contender():
    made = (
        reference_service("/a/python")
        .with_variables(DYN_USE_KV_EVENTS="false")
        .with_flags("--x", "1")
    )
    assert made.variables == {
        "DYN_LOG": "warn",
        "DYN_USE_KV_EVENTS": "false",
    }
    assert made.command[-2:] == ("--x", "1")


@pytest.mark.parametrize(
    ("depth", "rows"), [(RowDepth.QUICK, [2]), (RowDepth.FULL, [1, 2]), (RowDepth.SLOW, [1, 2, 9])]
)
def test_rows_are_those_of_the_extent_in_order(depth, rows):
    assert MeasurementExtent(3, 1, depth).of((2,), (1,), (9,)) == rows


def test_the_clock_of_a_process_is_the_one_that_it_reads_itself():
    before = time.process_time()
    seen = process_cpu_s(os.getpid())
    assert before <= seen <= time.process_time()
