"""Formats of vectors that can be played.

A new format is a line here and its own module.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.vectors import (
    health_capacity,
    health_judge,
    health_levels,
    health_migration,
    health_states,
    planner_capacity,
    planner_decisions,
    planner_predictors,
    planner_profile,
    planner_regression,
    planner_ticks,
    planner_virtual,
)
from tests.vectors.differences import Difference

Case = dict[str, Any]


def _play_kubectl(case: Case) -> Iterator[Difference]:
    """Play exchanges of kubectl. The fake server needs aiohttp, which .venv-predictors lacks."""
    from tests.vectors import planner_kubectl

    return planner_kubectl.play(case)


class Format(NamedTuple):
    """Format of cases.

    keys: keys that every case of the format has, and no case of an earlier format
    """

    name: str
    keys: frozenset[str]
    play: Callable[[Case], Iterator[Difference]]


def _format(name: str, keys: str, play: Callable[[Case], Iterator[Difference]]) -> Format:
    return Format(name, frozenset(keys.split()), play)


FORMATS = (
    _format("health states", "config ranks rows", health_states.play),
    _format("health levels", "worsen_hold restore_hold margin rows", health_levels.play),
    _format("health level effects", "effects floors", health_levels.play_effects),
    _format("health judge", "reference answer tolerance tie verdict", health_judge.play_judge),
    _format("health agreement", "answers result", health_judge.play_agreement),
    _format("health block bytes", "model bytes_per_shard", health_migration.play_bytes),
    _format("health move cost", "model tokens link result", health_migration.play_cost),
    _format("health plan", "source reservations targets plan", health_migration.play_plan),
    _format("health capacity", "ranks slo load result", health_capacity.play),
    _format("planner kubectl", "client exchanges", _play_kubectl),
    _format("planner virtual", "setup steps", planner_virtual.play),
    _format(
        "planner predictor",
        "predictor observations predictions_after_each tolerance",
        planner_predictors.play_series,
    ),
    _format("planner predictor calls", "predictor calls tolerance", planner_predictors.play_calls),
    _format("planner ticks", "config limits forward_seconds ticks", planner_ticks.play),
    _format("planner capacity", "forward_seconds isl capacity", planner_capacity.play_capacity),
    _format("planner regression", "model max_samples observations asked", planner_regression.play),
    _format("planner profile", "npz prefill_samples decode_samples", planner_profile.play),
    _format("planner latency", "observed_before now asked", planner_capacity.play_estimates),
    _format("planner Erlang", "servers offered waits", planner_decisions.play_erlang),
    _format("planner prefill size", "isl seconds_base wanted", planner_decisions.play_prefill),
    _format("planner decode size", "contexts forward itl_s", planner_decisions.play_decode),
    _format("planner merge", "baseline results set_allowed", planner_decisions.play_merge),
    _format("planner budget pair", "current min_endpoints", planner_decisions.play_budget_pair),
    _format("planner budget", "current min_endpoint guard", planner_decisions.play_budget_single),
    _format("planner stabiliser", "settings low high rows", planner_decisions.play_stabiliser),
)


class UnknownFormat(Exception):
    """A case matches no format."""


def format_of(case: object) -> Format:
    """Return the first format that matches the keys of a case, or raise UnknownFormat."""
    if not isinstance(case, dict):
        raise UnknownFormat(f"a case is an object, not {type(case).__name__}")
    for known in FORMATS:
        if known.keys <= case.keys():
            return known
    names = ", ".join(known.name for known in FORMATS)
    raise UnknownFormat(f"no known format has the keys {sorted(case)}; known: {names}")
