"""Tests of alerts and dashboard: valid, firing when they should, with existing metrics.

Metrics are those of docs/reference/metrics.md; test_metrics checks that page against the code.
"""

import json
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from prometheus_client import ProcessCollector

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "examples" / "monitoring"
METRICS_DOCUMENT = (ROOT / "docs" / "reference" / "metrics.md").read_text()
PAGE = (ROOT / "docs" / "reference" / "alerts.md").read_text()
GUIDE = (ROOT / "docs" / "guides" / "monitoring.md").read_text()
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
GROUPS = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
ALERT_TESTS = {
    test["name"]: test for test in yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

OF_PROMETHEUS = {"up"}
LABELS_OF_PROMETHEUS = {"job", "instance", "le"}
WORDS = {"and", "or", "unless", "bool", "inf", "nan", "offset"}


def documented_metrics():
    """Return every name that a sample may have, from the tables of the page of metrics."""
    names = set()
    rows = re.findall(r"^\|`((?:select_service|dynamo)_\w+)`\|(\w)\|", METRICS_DOCUMENT, re.M)
    for name, kind in rows:
        if kind == "h":
            names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
        else:
            names.add(name)
    return names


def process_metrics():
    """Return the names of the process metrics, which exist only on Linux."""
    collector = ProcessCollector(registry=None)
    return {sample.name for family in collector.collect() for sample in family.samples}


PROCESS_METRICS = process_metrics()
KNOWN = documented_metrics() | PROCESS_METRICS | OF_PROMETHEUS | RECORDED


def metrics_of(query):
    """Return the metrics of a PromQL expression: no labels, functions or keywords."""
    query = re.sub(r"#.*", " ", re.sub(r'"(?:\\.|[^"\\])*"', " ", query))
    query = re.sub(r"\{[^}]*\}|\[[^]]*\]", " ", query)
    query = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "(", query)
    names = re.findall(r"(?<![\w:.])[a-zA-Z_:][\w:]*(?![\w:]|\s*\()", query)
    return set(names) - WORDS


def labels_of(query):
    """Return the labels that an expression matches, keeps or joins on."""
    matched = re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', query)
    listed = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", query)
    return set(matched) | {label.strip() for labels in listed for label in labels.split(",")}


def queries():
    """Yield (place, expression) of the rules, the panels and the variables of the dashboard."""
    for rule in RULES:
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            values = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            yield variable["name"], f"sum by ({values[2]}) ({values[1]})"


QUERIES = list(queries())


def by_name(pairs):
    return [pytest.param(*values, id=name) for name, *values in pairs]


@pytest.mark.parametrize(
    ("query", "metrics"),
    [
        ('sum by (a) (rate(x_total{b="c{d}"}[5m])) / 2 > 1e6', {"x_total"}),
        ("x and on (job, y) max_over_time(z[1m:5s] offset 1h) == 0.5", {"x", "z"}),
        ("job:x:ratio_rate5m unless (time() - b < 3600) # not c", {"job:x:ratio_rate5m", "b"}),
        ("histogram_quantile(0.9, sum by (le) (rate(h_bucket[$__rate_interval])))", {"h_bucket"}),
    ],
)
def test_metrics_are_found_in_an_expression(query, metrics):
    assert metrics_of(query) == metrics


@pytest.mark.parametrize("query", by_name(QUERIES))
def test_every_metric_of_a_query_exists(query):
    metrics = metrics_of(query)
    if not PROCESS_METRICS:
        metrics = {m for m in metrics if not m.startswith("process_")}
    assert metrics
    assert metrics <= KNOWN


@pytest.mark.parametrize("query", by_name(QUERIES))
def test_every_label_of_a_query_is_documented(query):
    unknown = labels_of(query) - LABELS_OF_PROMETHEUS
    assert {label for label in unknown if f"`{label}`" not in METRICS_DOCUMENT} == set()


def test_every_metric_of_the_texts_exists():
    texts = [GUIDE, *(text for alert in ALERTS.values() for text in alert["annotations"].values())]
    named = {
        name for text in texts for name in re.findall(r"\b(?:select_service|dynamo)_\w+", text)
    }
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in KNOWN}
    # `dynamo_tasks_*` covers several metrics, and the title of the dashboard is no metric.
    assert {name for name in named if not name.endswith("_")} <= KNOWN | families


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_a_severity_and_a_row_with_advice(name):
    alert = ALERTS[name]
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert alert["annotations"].keys() == {"summary", "description"}
    row = rf"^\|`{name}`\|{alert['labels']['severity']}\|.+\|.+\|$"
    assert len(re.findall(row, PAGE, re.M)) == 1


def test_the_page_lists_no_alert_that_is_not_there():
    assert set(re.findall(r"^\|`(\w+)`\|(?:critical|warning|info)", PAGE, re.M)) == set(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_is_tested_both_ways(name):
    test = ALERT_TESTS[name]
    fired = {s["labels"] for check in test["promql_expr_test"] for s in check["exp_samples"]}
    assert all(f'alertname="{name}"' in labels for labels in fired)
    # Each series belongs to an instance or a job; some of the series must stay quiet.
    subject = re.compile(r'\bjob="([^"]*)", instance="([^"]*)"')
    seen = {subject.search(series["series"]).groups() for series in test["input_series"]}
    assert 0 < len(fired) < len(seen)


def test_every_alert_test_belongs_to_an_alert():
    assert ALERT_TESTS.keys() == ALERTS.keys()


@pytest.fixture
def promtool():
    fetched = ROOT / ".tools" / "promtool"
    found = str(fetched) if fetched.exists() else shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not there: scripts/promtool fetches it where apt can")

    def run(*arguments):
        ran = subprocess.run(
            [found, *map(str, arguments)], cwd=FOLDER, capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    return run


def test_prometheus_accepts_the_rules(promtool):
    promtool("check", "rules", "alerts.yml")


def test_the_alerts_fire_when_they_should(promtool):
    promtool("test", "rules", "alerts_test.yml")


def test_prometheus_can_read_every_query_of_the_dashboard(promtool, tmp_path):
    rules = [
        {"record": f"query_{i}", "expr": query.replace("$__rate_interval", "5m")}
        for i, (_, query) in enumerate(QUERIES)
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", file)


def test_panels_have_ids_of_their_own():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_titles_of_panels_are_unique():
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert all(titles)
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("panel", by_name((panel["title"], panel) for panel in PANELS))
def test_a_panel_has_a_unit_and_the_chosen_data_source(panel):
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == chosen
    assert panel["targets"]
    assert all(target["datasource"] == chosen for target in panel["targets"])
    references = [target["refId"] for target in panel["targets"]]
    assert len(references) == len(set(references))


def test_every_query_of_the_dashboard_obeys_the_chosen_job_and_instance():
    for panel in PANELS:
        for target in panel["targets"]:
            expression = target["expr"]
            chosen = expression.count('job=~"$job", instance=~"$instance"')
            assert chosen == len(re.findall(r"(?:select_service|dynamo|process)_\w+\{", expression))
            assert chosen > 0


def test_panels_do_not_overlap():
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        taken |= cells


def test_the_dashboard_has_its_rows_in_order():
    rows = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert [row["title"] for row in rows] == [
        "Traffic and latency",
        "Admission",
        "Queue",
        "Load of ranks",
        "KV index and events",
        "Replicas",
        "Process",
        "Health",
        "Planner",
    ]
    assert all(a["gridPos"]["y"] < b["gridPos"]["y"] for a, b in pairwise(rows))
