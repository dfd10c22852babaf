"""Tests of the benchmark suite's results: medians, ratios, Markdown, JSON and charts."""

import json
import xml.etree.ElementTree as ET

import pytest

from scripts.bench.line_plot import PlotAxis, PlotPanel, log_ticks, render_svg
from scripts.bench.suite import benchmark_report, curve_panels
from scripts.bench.suite.earlier_run import OtherRunError, earlier_in
from scripts.bench.suite.machine_facts import Disturbance, MachineFacts
from scripts.bench.suite.result_tables import ResultColumn, ResultRow, ResultSample, ResultTable

MEASURES = (ResultColumn("CPU us"), ResultColumn("requests/s", more_is_better=True))
MACHINE = MachineFacts("a CPU", 2, 24.0, "6.1", "3.11.7", 20.0, 3.0, "abc1234", {"numba": "0.68"})
QUIET, BUSY = Disturbance(0.5, 0.0, 1.0), Disturbance(8.0, 12.0, 30.0)


def a_table():
    """Return a table with three samples of 8 hashes; of 512 hashes, a sample of ours is invalid."""
    table = ResultTable("Selecting", "prompt", MEASURES, judged=0, curve="hashes")
    for ours, theirs in ((40.0, 90.0), (30.0, 120.0), (900.0, 100.0)):
        row = ResultRow("8 hashes", 8, "8 workers", goal=2.0)
        table.add(row, "ours", ResultSample((ours, 3000.0), QUIET))
        table.add(row, "1.3.1", ResultSample((theirs, 1500.0), BUSY))
    row = ResultRow("512 hashes", 512, "8 workers", goal=3.3)
    table.add(row, "ours", ResultSample((100.0, 1000.0), QUIET))
    table.add(row, "ours", ResultSample(None, BUSY))
    table.add(row, "1.3.1", ResultSample((200.0, 500.0), Disturbance(1.0, 0.0, None)))
    return table


def results_of(*tables, base="1.3.1", problems=()):
    return benchmark_report.BenchmarkRun(
        MACHINE,
        "suite",
        "today",
        12.0,
        ["ours", "1.3.1"],
        ["ours"],
        base,
        tables,
        list(problems),
        3,
    )


def test_a_cell_is_the_median_and_a_ratio_is_above_one_where_ours_is_better():
    table = a_table()
    assert table.median("8 hashes", "ours", 0) == 40.0
    assert table.ratio("8 hashes", "ours", "1.3.1", 0) == 2.5  # less CPU
    assert table.ratio("8 hashes", "ours", "1.3.1", 1) == 2.0  # more requests


def test_a_sample_with_wrong_answers_counts_as_noise_and_not_as_a_value():
    table = a_table()
    assert table.values("512 hashes", "ours", 0) == [100.0]
    assert table.noise("512 hashes", "ours") == BUSY


def test_an_unmeasured_cell_has_no_median_and_no_ratio():
    table = a_table()
    assert table.median("8 hashes", "1.6.1", 0) is None
    assert table.ratio("8 hashes", "ours", "1.6.1", 0) is None
    assert table.noise("8 hashes", "1.6.1") is None


def test_markdown_shows_goals_that_are_reached_and_missed():
    text = benchmark_report.render_markdown(results_of(a_table()))
    assert "| 8 hashes: CPU us | 1.3.1 | **2.50** | 2 |" in text
    assert "| 512 hashes: CPU us | 1.3.1 | 2.00, missed | 3.3 |" in text


def test_markdown_has_the_machine_and_the_noise_of_each_row():
    text = benchmark_report.render_markdown(results_of(a_table()))
    assert "a CPU, 2 CPUs, 24.0 GB" in text
    assert "abc1234, Python 3.11.7, numba 0.68" in text
    assert "| 8 hashes | ours | 40 (2.50) | 3000 (2.00) | 0.5 | 0 | 1 |" in text
    assert "| 512 hashes | 1.3.1 | 200 | 500 | 1.0 | 0 |  |" in text


def test_markdown_lists_void_samples_and_problems():
    table = ResultTable("Selecting", "prompt", MEASURES)
    table.add(ResultRow("8 hashes"), "ours", ResultSample(None, QUIET))
    text = benchmark_report.render_markdown(results_of(table, problems=["8 hashes: 3 errors"]))
    assert "| 8 hashes | ours | void | void |" in text
    assert "* 8 hashes: 3 errors" in text


def test_without_another_service_there_are_values_and_no_goals():
    text = benchmark_report.render_markdown(results_of(a_table(), base=None))
    assert "Goals" not in text
    assert "| 8 hashes | ours | 40 | 3000 |" in text


def test_goals_are_not_about_this_service_as_it_was():
    whole = results_of(a_table())._replace(contenders=["ours", "1.3.1"], ours=["ours", "1.3.1"])
    assert "Goals" not in benchmark_report.render_markdown(whole)


def test_a_goal_may_be_about_this_service_as_it_was():
    table = ResultTable("Starting", "", [ResultColumn("CPU s")])
    row = ResultRow("warm start", goal_before=2.0)
    for name, value in (("ours", 1.0), ("before (abc)", 3.0), ("1.3.1", 0.1)):
        table.add(row, name, ResultSample((value,), QUIET))
    names = ["ours", "before (abc)", "1.3.1"]
    whole = results_of(table)._replace(contenders=names, ours=names[:2])
    for base in ("1.3.1", "before (abc)"):
        text = benchmark_report.render_markdown(whole._replace(base=base))
        assert text.count("| warm start: CPU s |") == 1
        assert "| warm start: CPU s | before (abc) | **3.00** |  | 2 |" in text


def test_without_goals_markdown_does_not_mention_goals():
    table = ResultTable("Selecting", "prompt", MEASURES)
    table.add(ResultRow("8 hashes"), "ours", ResultSample((1.0, 1.0), QUIET))
    assert "Goals" not in benchmark_report.render_markdown(results_of(table))


def test_the_document_keeps_every_value_and_is_json():
    document = json.loads(json.dumps(benchmark_report.render_document(results_of(a_table()))))
    (table,) = document["tables"]
    first, second = table["rows"]
    assert (first["label"], first["goal"], table["judged"]) == ("8 hashes", 2.0, "CPU us")
    assert first["services"]["ours"]["measures"]["CPU us"] == {
        "median": 40.0,
        "values": [40.0, 30.0, 900.0],
        "ratio": 2.5,
    }
    assert second["services"]["ours"]["void"] == 1
    assert second["services"]["1.3.1"]["noise"] == [
        {"load": 1.0, "steal_percent": 0.0, "others_percent": None}
    ]
    assert document["machine"]["libraries"] == {"numba": "0.68"}


def test_tables_of_an_earlier_run_are_those_that_it_wrote(tmp_path):
    table = a_table()
    table.note = "of a machine"
    written = benchmark_report.render_document(results_of(table, problems=["p"]))
    (tmp_path / "result.json").write_text(json.dumps(written))
    read = earlier_in(tmp_path, "abc1234", ["ours", "1.3.1"], 3)
    assert read is not None
    whole = results_of(*read.tables, problems=read.problems)
    assert benchmark_report.render_document(whole) == written
    assert benchmark_report.render_markdown(whole) == benchmark_report.render_markdown(
        results_of(table, problems=["p"])
    )


@pytest.mark.parametrize(
    "other",
    [("abc", ["ours", "1.3.1"], 3), ("abc1234", ["ours"], 3), ("abc1234", ["ours", "1.3.1"], 1)],
)
def test_a_run_of_another_commit_or_other_services_is_not_gone_on_with(tmp_path, other):
    assert earlier_in(tmp_path, *other) is None
    (tmp_path / "result.json").write_text(
        json.dumps(benchmark_report.render_document(results_of(a_table())))
    )
    with pytest.raises(OtherRunError):
        earlier_in(tmp_path, *other)


def test_a_table_with_a_curve_is_drawn_with_one_line_per_service():
    (panel,) = curve_panels.panels([a_table()], ["ours", "1.3.1"])
    assert panel.title == "CPU us by hashes, 8 workers"
    assert panel.lines == {"ours": [(8, 40.0), (512, 100.0)], "1.3.1": [(8, 100.0), (512, 200.0)]}
    assert (panel.x.begin, panel.x.end) == (8, 512)


def test_a_table_of_one_row_is_not_drawn():
    table = ResultTable("Selecting", "prompt", MEASURES, curve="hashes")
    table.add(ResultRow("8 hashes", 8), "ours", ResultSample((1.0, 1.0), QUIET))
    assert curve_panels.panels([table], ["ours"]) == []


def test_lines_end_at_the_edges_of_their_diagram_and_text_is_escaped():
    lines = {"a < b": [(1.0, 1.0), (100.0, 100.0)]}
    picture = render_svg(
        [PlotPanel("CPU & time", lines, PlotAxis(1, 100, [1, 10, 100], is_log=True), True)]
    )
    root = ET.fromstring(picture)
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"CPU & time", "a < b", "10"} <= set(texts)
    (line,) = [e for e in root.iter() if e.get("stroke-width") == "2"]
    assert line.get("points") == "62.0,216.0 840.0,30.0"


def test_ticks_of_a_logarithmic_scale_enclose_all_values():
    assert log_ticks([3.0, 40.0, 0.0]) == [1.0, 10.0, 100.0]
    assert log_ticks([10.0]) == [10.0, 100.0]
