"""The report: whole, small, and without anything from elsewhere."""

import base64
import importlib.util
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from select_service.planner.core.settings import Settings
from select_service.planner.report import drawing as drawing_module
from select_service.planner.report import page as page_module
from select_service.planner.report.charts import Chart, Line, drawn
from select_service.planner.report.drawing import SVG, FormatError, drawing_of
from select_service.planner.report.page import page_of
from select_service.planner.report.views import Series, view_of
from select_service.planner.status import COLUMNS, HISTORY_ROWS_MAX, DeploymentStatus
from tests.planner.made_up import a_day

needs_plotly = pytest.mark.skipif(
    importlib.util.find_spec("plotly") is None,
    reason="the extra `report` (plotly) is not installed",
)
BYTES_MAX = 2_000_000
VOID = {"meta", "link", "path", "br"}
IMPLIED = {"tr", "td", "th", "p"}


class Balance(HTMLParser):
    """Fails at an element that is closed without having been opened."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.attributes = []

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        if tag not in VOID | IMPLIED:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in VOID | IMPLIED:
            assert self.open.pop() == tag


def parsed(page):
    balance = Balance()
    balance.feed(page.decode())
    assert balance.open == []
    return balance


@pytest.fixture(scope="module")
def day():
    return a_day("a <b> & \"c\" 'd'", ticks=600)


def test_equal_views_are_equal_bytes(day):
    assert page_of([view_of(day)]) == page_of([view_of(day)])


def test_a_page_is_well_formed_and_loads_nothing(day):
    found = parsed(page_of([view_of(day)]))
    links = {value for name, value in found.attributes if name in ("href", "src")}
    assert links == {"#d0", "data:,"}
    text = page_of([view_of(day)]).decode()
    assert "<b> &" not in text
    assert "url(" not in text
    assert "<script" not in text


def without_plotly(monkeypatch):
    monkeypatch.setattr(drawing_module, "find_spec", lambda name: None)


def test_a_format_that_is_not_there_is_said_in_one_line(monkeypatch):
    assert drawing_of("svg") is SVG
    with pytest.raises(FormatError, match=r"^format: expected svg or plotly$"):
        drawing_of("png")
    without_plotly(monkeypatch)
    with pytest.raises(FormatError, match=r"^format plotly needs: pip install '.*\[report\]'$"):
        drawing_of("plotly")


def traces_of(page):
    """Chart -> its traces, as the library is given them."""
    calls = re.findall(r'Plotly\.newPlot\(\s*"(chart\d+)",\s*(\[.*?\]),\s*\{"', page.decode(), re.S)
    return {place: json.loads(traces) for place, traces in calls}


def numbers(encoded):
    if isinstance(encoded, list):
        return np.array(encoded, dtype=float)
    return np.frombuffer(base64.b64decode(encoded["bdata"]), encoded["dtype"])


@needs_plotly
def test_plotly_draws_the_same_charts(day):
    view = view_of(day)
    page = page_of([view], drawing=drawing_of("plotly"))
    assert page == page_of([view], drawing=drawing_of("plotly"))
    plain = page_of([view]).decode()
    captions = r"<figcaption><b>([^<]*)</b>"
    assert re.findall(captions, page.decode()) == re.findall(captions, plain)
    charts = traces_of(page)
    assert list(charts) == [f"chart{n}" for n in range(plain.count("<figure>"))]
    ready = next(each for each in charts["chart0"] if each["name"] == "ready")
    column = view.table[:, COLUMNS.index("prefill_ready")]
    assert np.nanmax(numbers(ready["y"])) == np.nanmax(column)
    assert ready["x"] is not None
    told = [text for traces in charts.values() for each in traces for text in each.get("text", ())]
    assert len(told) == len(view.changes)
    assert any("up: More replicas are wanted" in text for text in told)
    assert "Plotly.newPlot" in page.decode()
    assert not re.findall(r"<script[^>]+src=", page.decode())
    assert len(page) < 7_000_000


@needs_plotly
def test_a_gap_is_a_gap_in_plotly_too():
    times = np.arange(100.0)
    values = np.where((times > 40) & (times < 60), np.nan, 5.0)
    chart = Chart("t", [Line("l", "observed", Series(times, values))])
    text = drawing_of("plotly").draw(chart, 0.0, 99.0)
    (trace,) = traces_of(text.encode())["chart0"]
    assert np.isnan(numbers(trace["y"])).sum() == 2


def test_a_decision_says_its_reasons_when_it_is_pointed_at(day):
    titles = re.findall(r"<title>(.*?)</title>", page_of([view_of(day)]).decode(), re.S)
    assert any("→" in title and "up: More replicas are wanted" in title for title in titles)


def test_gpu_hours_stand_against_the_least_possible(day):
    text = page_of([view_of(day, least_gpu_hours=day.gpu_hours / 1.25)]).decode()
    assert "<td>1.25" in text


def test_nan_and_infinity_are_never_drawn(day):
    text = page_of([view_of(day)]).decode()
    assert not re.search(r'd="[^"]*(nan|inf)', text)


def test_what_is_not_known_is_a_gap():
    times = np.arange(100.0)
    values = np.where((times > 40) & (times < 60), np.nan, 5.0)
    text = drawn(Chart("t", [Line("l", "observed", Series(times, values))]), 0.0, 99.0)
    assert re.search(r'class="line observed" d="M[^M]+M[^M]+"', text)


@pytest.mark.parametrize("most", [1, 6, 9, 24, 1e4])
def test_an_axis_of_counts_has_whole_numbers(most):
    text = drawn(
        Chart("t", [Line("l", "ready", Series(np.arange(3.0), np.full(3, most)))]), 0.0, 2.0
    )
    labels = re.findall(r'text-anchor="end">([^<]*)</text>', text)
    if most > 4:
        assert not any("." in label for label in labels)
    assert 2 <= len(labels) <= 8


def test_no_deployment_and_one_that_has_not_ticked_are_pages():
    assert b"No deployment" in page_of([])
    status = DeploymentStatus("new", Settings())
    assert b"has not ticked" in page_of([view_of(status)])


def test_one_tick_is_a_page():
    parsed(page_of([view_of(a_day(ticks=1))]))


@pytest.mark.parametrize("deployments", [1, 3, 24, 256])
def test_it_is_small_whatever_there_is_to_show(day, deployments):
    rng = np.random.default_rng(1)
    table = rng.uniform(1, 1e4, size=(HISTORY_ROWS_MAX, len(COLUMNS)))
    table[:, 0] = np.arange(HISTORY_ROWS_MAX) * 5.0 + 1.8e9
    changes = day.changes[0]
    view = view_of(day)._replace(name="n" * 256, table=table, changes=(changes,) * 2000)
    page = page_of([view] * deployments)
    assert len(page) < BYTES_MAX
    assert page.count(b"<section") == min(deployments, page_module.DEPLOYMENTS_MAX)


@pytest.fixture
def chromium():
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if found is None:
        pytest.skip("chromium is not installed")
    return found


def test_a_browser_renders_it_without_complaint(chromium, day, tmp_path):
    file = tmp_path / "report.html"
    file.write_bytes(page_of([view_of(day)]))
    ran = subprocess.run(
        [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert ran.returncode == 0
    assert ran.stdout.count("<figure>") == 7
    assert not [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
