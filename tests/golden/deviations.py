"""Reader of deviations.toml: deliberate differences of this service from the reference."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.golden import exchanges
from tests.golden.exchanges import ABSENT, Differences, expanded, in_order, with_ports

LIST = tomllib.loads((Path(__file__).parent / "deviations.toml").read_text())
NO_START = {entry["scenario"]: entry for entry in LIST["no_start"]}
"""Scenarios with settings that this service refuses: no step of these can be played."""


def own_flags(scenario: str) -> tuple[str, ...]:
    """Return this service's flags for a default of the reference, by version or scenario."""
    named = (scenario, exchanges.VERSIONS[scenario])
    return tuple(
        flag
        for entry in LIST.get("own_flags", [])
        if entry["of"] in named
        for flag in entry["flags"]
    )


def rewritten(scenario: str, step: dict[str, Any]) -> dict[str, Any]:
    """Return the step with added fields and with all ranks that may be chosen in a tie.

    The fields make the reference's unwanted default explicit.
    """
    for entry in LIST.get("rewritten", []):
        if entry["scenario"] == scenario and step["step"] in entry["steps"]:
            step = {**step, "send": {**step["send"], **entry["add"]}}
    for entry in LIST.get("tied", []):
        if (entry["scenario"], entry["step"]) == (scenario, step["step"]):
            step = {**step, "tied": entry["ranks"]}
    return step


def unexpected(
    scenario: str,
    found: Differences,
    table: str = "deviation",
    ports: Mapping[str, int] = MappingProxyType({}),
) -> list[str]:
    """Return a line per difference that is not listed, and per listed difference that is absent.

    ports: port numbers that replace `<port N>` in a listed answer
    """
    entries = [entry for entry in LIST.get(table, []) if entry["scenario"] == scenario]
    listed = {
        place: _filled(ours, ports) for entry in entries for place, ours in entry["ours"].items()
    }
    complaints, fields_seen = [], set()
    for place, (reference, ours) in found.items():
        field = place.rsplit("/", 1)[-1]
        if place in listed:
            if listed[place] != ours:
                complaints.append(f"{place}: listed as {listed[place]!r}, is {ours!r}")
        elif reference == ABSENT and field in _EXTRA_FIELDS:
            fields_seen.add(field)
        else:
            complaints.append(f"{place}: the reference has {reference!r}, we have {ours!r}")
    occasional = {
        place for entry in entries if entry.get("is_occasional") for place in entry["ours"]
    }
    gone = sorted(listed.keys() - found.keys() - occasional)
    complaints += [f"{place}: listed, but we answer like the reference" for place in gone]
    if table == "deviation":
        wanted = {e["field"] for e in LIST["extra_field"] if e["seen_in"] == scenario}
        complaints += [f"no extra field {field}" for field in sorted(wanted - fields_seen)]
    return complaints


def _filled(ours: Any, ports: Mapping[str, int]) -> Any:
    filled = with_ports({"ours": ours}, ports)["ours"]
    if isinstance(ours, list) and filled != ours:  # endpoints are sorted with their real ports
        return in_order(filled)
    return _with_nulls(expanded(filled))


def _with_nulls(ours: Any) -> Any:
    """Return the value with nulls; TOML has no null and uses a text."""
    if isinstance(ours, list):
        return [_with_nulls(each) for each in ours]
    if isinstance(ours, dict):
        return {key: _with_nulls(value) for key, value in ours.items()}
    return None if ours == "null" else ours


_EXTRA_FIELDS = {entry["field"] for entry in LIST["extra_field"]}
