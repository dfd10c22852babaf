"""Tests of the benchmark suite's order of work, without any measurement."""

from scripts.bench.http_load import Lives, LoadResult
from scripts.bench.services_under_test import own_service, reference_service
from scripts.bench.suite.__main__ import PARTS
from scripts.bench.suite.measurement_order import (
    MeasurementExtent,
    RowDepth,
    SuitePart,
    SuiteRun,
    check_answers,
    execute_parts,
)
from scripts.bench.suite.result_tables import ResultColumn, ResultRow

EXTENT = MeasurementExtent(repeats=2, cell_s=1, depth=RowDepth.QUICK)


class Clock:
    """Process that has used 1 s more of CPU at every reading."""

    def __init__(self):
        self.seconds = 0.0

    def cpu_s(self):
        self.seconds += 1.0
        return self.seconds


class FakeSite:
    is_pinned = True

    def __init__(self, name):
        self.name, self.running = name, Clock()


def a_run():
    return SuiteRun([own_service(), reference_service("/a/python")], EXTENT)


def test_sites_are_measured_in_turn_and_wrong_answers_are_void():
    run, asked = a_run(), []
    table = run.table("T", "row", [ResultColumn("m")])

    def measure(place):
        asked.append(place.name)
        errors = 3 if len(asked) == 2 else 0
        return (float(check_answers(LoadResult(10, errors, 1.0, 1.0, 1.0)).requests),)

    run.turns(table, ResultRow("r"), [FakeSite("a"), FakeSite("b")], measure)
    assert asked == ["a", "b", "a", "b"]
    assert table.values("r", "a", 0) == [10.0, 10.0]
    assert table.values("r", "b", 0) == [10.0]
    assert run.problems == ["T, r, b: 3 errors, 10 answers"]


def test_the_same_title_is_the_same_table():
    run = a_run()
    assert run.table("T", "row", [ResultColumn("m")]) is run.table("T", "row", [ResultColumn("m")])


def test_a_failed_part_is_reported_and_others_run():
    run, done = a_run(), []

    def fails(_, __):
        raise OSError("no socket")

    parts = [
        SuitePart("first", "", (), fails),
        SuitePart("second", "", (), lambda _, places: done.append(places.sites)),
    ]
    execute_parts(run, parts)
    assert run.problems == ["first: OSError: no socket"]
    assert done == [()]


def test_names_of_parts_are_distinct():
    assert len({part.name for part in PARTS}) == len(PARTS)


def test_every_step_of_a_life_is_about_a_reservation_that_was_made_before():
    lives = Lives("x-", "reservation_id", 2)
    requests = lives.requests([b'{"token_ids":[1]}'])
    first, second, third, fourth = (next(requests) for _ in range(4))
    assert first.endswith(b'\r\n\r\n{"token_ids":[1],"reservation_id":"x-5"}')
    assert second.startswith(b"POST /reservations/x-3/prefill_complete HTTP/1.1\r\n")
    assert third == b"DELETE /reservations/x-1 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    assert fourth.endswith(b'"reservation_id":"x-6"}')


def test_only_rows_with_the_requested_text_are_measured():
    run, asked = SuiteRun([own_service()], EXTENT, ["512 hashes"]), []
    table = run.table("T", "row", [ResultColumn("m")])
    for label in ("8 hashes, 8 workers", "512 hashes, 8 workers"):
        run.turns(
            table,
            ResultRow(label),
            [FakeSite("ours")],
            lambda _, of=label: asked.append(of) or (1,),
        )
    assert asked == 2 * ["512 hashes, 8 workers"]


def test_a_run_goes_on_where_another_has_ended():
    """A resumed run keeps the complete row, repeats the row with an error and adds the last."""
    first = SuiteRun([own_service()], EXTENT)
    table, answers = first.table("T", "row", [ResultColumn("m")]), iter((0, 0, 0, 1))

    def measure(place):
        return (float(check_answers(LoadResult(10, next(answers), 1.0, 1.0, 1.0)).requests),)

    for label in ("a", "b"):
        first.turns(table, ResultRow(label), [FakeSite("ours")], measure)
    run, measured = SuiteRun([own_service()], EXTENT), []
    run.go_on([table], first.problems)
    again = run.table("T", "row", [ResultColumn("m")])
    for label in ("a", "b", "c"):
        run.turns(
            again,
            ResultRow(label),
            [FakeSite("ours")],
            lambda _, of=label: measured.append(of) or (1,),
        )
    assert measured == ["b", "b", "c", "c"]
    assert again.values("a", "ours", 0) == [10.0, 10.0]
    assert again.values("b", "ours", 0) == [1.0, 1.0]
    assert run.problems == ["T, b, ours: 1 errors, 10 answers"]


def test_results_are_saved_after_each_part():
    run, kept = a_run(), []
    parts = [SuitePart(name, "", (), lambda *_: None) for name in ("first", "second")]
    execute_parts(run, parts, lambda: kept.append(len(kept)))
    assert kept == [0, 1]
