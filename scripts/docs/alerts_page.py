# ruff: noqa: E501 -- long lines are lines of the page
"""Page of all alerts, from the rules for Prometheus."""

import re
from pathlib import Path
from typing import Any

import yaml

from scripts.docs.markdown import marked, table

RULES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "monitoring" / "alerts.yml"
INTRODUCTION = """\
# Alerts

The alerting rules of [`alerts.yml`](../examples/monitoring/alerts.yml). [Monitoring](../guides/monitoring.md) explains
how to load them. The severity `critical` means that requests fail or soon will; `warning`: look today; `info`: look
when there is time. Limits that depend on your fleet are numbers in the expressions.
"""
TITLES = {
    "availability": "Availability",
    "admission": "Admission and queue",
    "kv_events": "KV events",
    "index": "Index and recovery",
    "replicas": "Replicas",
    "health": "Health (with `--health-checks on`)",
    "pairs": "Pairs",
    "planner": "Planner (scrape port 8095 as well)",
}


def alerts_page() -> str:
    """Return the page with one table for each group of rules."""
    sections = [INTRODUCTION.strip()]
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        rows = [_row(rule) for rule in group["rules"] if "alert" in rule]
        if rows:
            title = TITLES[group["name"].removeprefix("select_service_")]
            head = ("alert", "severity", "after", "meaning and what to do")
            sections += [f"## {title}", table(head, rows)]
    return marked(__name__, "\n\n".join(sections))


def _row(rule: dict[str, Any]) -> tuple[str, str, str, str]:
    texts = rule["annotations"]
    meaning = f"**{plain(texts['summary'])}.** {plain(texts['description'])}"
    return f"`{rule['alert']}`", rule["labels"]["severity"], rule.get("for", "at once"), meaning


def plain(text: str) -> str:
    """Return a text with its template actions replaced: a label by its name, a value by N."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"`\1`", text)
    return re.sub(r"\{\{ \$value[^}]*\}\}", "N", text)
