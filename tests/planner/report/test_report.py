"""Tests of the report: complete, small, and without external resources."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import Role
from select_service.planner.deployment_status import COLUMNS, HISTORY_ROWS_MAX, DeploymentStatus
from select_service.planner.report import report_page as page_module
from select_service.planner.report.report_page import render_page
from select_service.planner.report.report_views import ChartSeries, make_view
from select_service.planner.report.svg_charts import Chart, ChartLine, draw_chart
from tests.planner.invented_ticks import a_day, a_role, a_tick, effects

BYTES_MAX = 2_000_000
VOID = {"meta", "link", "path", "br"}
IMPLIED = {"tr", "td", "th", "p"}


class Balance(HTMLParser):
    """Parser that fails at a closing tag without an opening tag."""

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


def parse_page(page):
    balance = Balance()
    balance.feed(page.decode())
    assert balance.open == []
    return balance


@pytest.fixture(scope="module")
def day():
    return a_day("a <b> & \"c\" 'd'", ticks=600)


def test_equal_views_are_equal_bytes(day):
    assert render_page([make_view(day)]) == render_page([make_view(day)])


def test_a_page_is_well_formed_and_loads_nothing(day):
    found = parse_page(render_page([make_view(day)]))
    links = {value for name, value in found.attributes if name in ("href", "src")}
    assert links == {"#d0", "data:,"}
    text = render_page([make_view(day)]).decode()
    assert "<b> &" not in text
    assert "url(" not in text
    assert "<script" not in text


def test_a_decision_has_its_reasons_as_tooltip(day):
    titles = re.findall(r"<title>(.*?)</title>", render_page([make_view(day)]).decode(), re.S)
    assert any("→" in title and "up: More replicas are needed" in title for title in titles)


def test_a_decision_shows_its_second(day):
    """Decisions of a day, and those of a replay, may be seconds apart."""
    text = render_page([make_view(day)]).decode()
    assert re.search(r"<title>\d\d \w{3} \d\d:\d\d:\d\d  decode: ", text)
    assert re.search(r"<tr><td>\d\d \w{3} \d\d:\d\d:\d\d<td>(decode|prefill)<td>", text)
    replay = render_page([make_view(a_day(ticks=600, start_s=0.0))]).decode()
    assert re.search(r"<tr><td>\d+:\d\d:\d\d<td>", replay)


def a_drain(serving_ready):
    """Return a status of four replicas, one of which drains for ten ticks and leaves."""
    status = DeploymentStatus("llama", DeploymentSettings(mode="agg"))
    for at in range(30):
        drains = 10 <= at < 20
        count = 4 if at < 20 else 3
        role = {
            "ready": count if serving_ready or not drains else 3,
            "starting": 0 if serving_ready or not drains else 1,
        }
        more = {"serving": 3, "draining": 1} if drains else {}
        wished = {Role.DECODE: 3} if at >= 10 else None
        told = effects(5.0 * at, {Role.DECODE: a_role(**role, final=count, **more)}, wished=wished)
        status.add_tick(a_tick(5.0 * at), told, None)
    return status


@pytest.mark.parametrize("serving_ready", [True, False])
def test_draining_has_a_colour_of_its_own(serving_ready):
    """Platforms count draining replicas as ready, or as missing."""
    view = make_view(a_drain(serving_ready))
    text = render_page([view]).decode()
    assert text.count('class="area draining"') == 1
    during = view.table[15]
    names = ("serving", "draining", "total")
    found = {name: during[COLUMNS.index(f"decode_{name}")] for name in names}
    assert found == {"serving": 3.0, "draining": 4.0, "total": 4.0}
    assert 'class="area draining"' not in render_page([make_view(a_day(ticks=30))]).decode()


def test_gpu_hours_are_compared_with_the_least_possible(day):
    text = render_page([make_view(day, least_gpu_hours=day.gpu_hours / 1.25)]).decode()
    assert "<td>1.25" in text


def test_nan_and_infinity_are_never_drawn(day):
    text = render_page([make_view(day)]).decode()
    assert not re.search(r'd="[^"]*(nan|inf)', text)


def test_unknown_values_are_gaps():
    times = np.arange(100.0)
    values = np.where((times > 40) & (times < 60), np.nan, 5.0)
    text = draw_chart(
        Chart("t", [ChartLine("l", "observed", ChartSeries(times, values))]), 0.0, 99.0
    )
    assert re.search(r'class="line observed" d="M[^M]+M[^M]+"', text)


@pytest.mark.parametrize("most", [1, 6, 9, 24, 1e4])
def test_an_axis_of_counts_has_whole_numbers(most):
    text = draw_chart(
        Chart("t", [ChartLine("l", "ready", ChartSeries(np.arange(3.0), np.full(3, most)))]),
        0.0,
        2.0,
    )
    labels = re.findall(r'text-anchor="end">([^<]*)</text>', text)
    if most > 4:
        assert not any("." in label for label in labels)
    assert 2 <= len(labels) <= 8


def test_no_deployment_and_one_that_has_not_ticked_are_pages():
    assert b"No deployment" in render_page([])
    status = DeploymentStatus("new", DeploymentSettings())
    assert b"No tick yet" in render_page([make_view(status)])


def test_one_tick_is_a_page():
    parse_page(render_page([make_view(a_day(ticks=1))]))


@pytest.mark.parametrize("deployments", [1, 3, 24, 256])
def test_the_report_is_small_for_any_number_of_deployments(day, deployments):
    rng = np.random.default_rng(1)
    table = rng.uniform(1, 1e4, size=(HISTORY_ROWS_MAX, len(COLUMNS)))
    table[:, 0] = np.arange(HISTORY_ROWS_MAX) * 5.0 + 1.8e9
    changes = day.changes[0]
    view = make_view(day)._replace(name="n" * 256, table=table, changes=(changes,) * 2000)
    page = render_page([view] * deployments)
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
    file.write_bytes(render_page([make_view(day)]))
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
