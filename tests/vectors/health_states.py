"""Player of health-state cases: effects of each event on the ranks of a partition."""

from collections.abc import Iterator, Mapping
from typing import Any

from select_service.core.health.health_effects import (
    CheckRequested,
    ChecksAccepted,
    ChecksRefused,
    ConnectionProbeRequested,
    DrainFinished,
    EjectionWithheld,
    HealthEffect,
    MigrationRequested,
    ProbeRequested,
    RankReset,
    ReleaseRequested,
    SparePromoted,
    StateChanged,
    WeightChanged,
)
from select_service.core.health.health_kinds import CheckKind, RankHealthState, RequestOutcome
from select_service.core.health.health_rules import DESIGN_DOCUMENT_RULES, HealthRules
from select_service.core.health.rank_state.health_record import HealthRecord
from select_service.core.health.rank_state.partition_health import PartitionHealth
from select_service.core.identity import Rank
from tests.vectors.differences import Difference, differences

CONFIGS = {"default": HealthRules(), "seed": DESIGN_DOCUMENT_RULES}
OVERRIDES = {
    "failure_threshold": "failures",
    "recovery_timeout": "recovery_s",
    "recovery_timeout_max": "recovery_s_max",
    "backoff_max": "recovery_s_max",
    "passes_wrong": "passes_after_wrong_answers",
    "factor": "spike_factor",
    "margin_ms": "spike_margin_ms",
    "samples": "baseline_samples",
    "slow_start": "slow_start_s",
    "slow_start_from": "slow_start_weight",
    "passive_window": "passive_window_s",
    "drain_timeout": "drain_s",
    "dead_after": "dead_after_s",
    "dead_probe": "dead_probe_s",
}
"""Our names of the vectors' rules, where the names differ."""


class Scene:
    """Ranks of one case."""

    def __init__(self, case: dict[str, Any]) -> None:
        self._rules = rules_of(case)
        self._effects: list[HealthEffect] = []
        self._health = PartitionHealth(self._rules, self._effects)
        self._ranks = {name: Rank(at, 0) for at, name in enumerate(case["ranks"])}
        self._names = {rank: name for name, rank in self._ranks.items()}
        for name, rank in self._ranks.items():
            self._health.add_rank(rank, name in case["spares"], 0.0)
        self._effects.clear()

    def play(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return the effects of the event and of the time before, and the state after both."""
        self._effects.clear()
        self._health.advance_timers(event["t"])
        if event["ev"] != "tick":
            self._process_event(event, self._ranks[event["rank"]], event["t"])
        said = (word_of(effect, self._names) for effect in self._effects)
        after = {
            self._names[r.rank]: self._listed_workers(r, event["t"]) for r in self._health.registry
        }
        return {"actions": [word for word in said if word is not None], "after": after}

    def check_invariants(self) -> None:
        """Check the invariants of the state machine."""
        self._health.check_invariants()

    def _process_event(self, event: dict[str, Any], rank: Rank, now: float) -> None:
        health = self._health
        match event["ev"]:
            case "check":
                counts = event.get("judge_latency", True)
                kind, took = CheckKind(event["result"]), event["latency_ms"]
                kind = health.judge_latency(rank, kind, took) if counts else kind
                health.apply_check(rank, kind, now, took if counts else None)
            case "passive":
                health.apply_report(rank, RequestOutcome(event["outcome"]), now)
            case "reservations":
                health.set_reservations(rank, event["count"])
            case "drain":
                health.drain_rank(rank, now)
            case "undrain":
                health.undrain_rank(rank, now)
            case "register":
                health.reset_rank(rank, now)
            case other:
                raise ValueError(f"unknown event {other!r}")

    def _listed_workers(self, record: HealthRecord, now: float) -> dict[str, Any]:
        return {
            "state": record.state.label,
            "code": int(record.state),
            "weight": record.compute_weight(now, self._rules),
            "breaker": record.breaker.state.label,
            "failures": record.failures,
            "cause": record.cause,
            "baseline_ms": record.baseline.value_ms,
            "spare": record.is_spare,
        }


def word_of(effect: HealthEffect, names: Mapping[Rank, str]) -> str | None:
    """Return an effect in the words of the cases; None means effects that cases do not list."""
    match effect:
        case WeightChanged() | ChecksRefused() | ChecksAccepted() | ConnectionProbeRequested():
            return None
        case StateChanged(rank, _, RankHealthState.UNHEALTHY, cause):
            return f"unhealthy {names[rank]} {cause}"
        case StateChanged(rank, _, state, _):
            return f"{state.label} {names[rank]}"
        case MigrationRequested(rank, count):
            return f"plan {names[rank]} {count}"
        case ReleaseRequested(rank, count):
            return f"release {names[rank]} {count}"
        case SparePromoted(spare, failed):
            return f"promoted {names[spare]} for {names[failed]}"
        case EjectionWithheld(rank, _):
            return f"withheld {names[rank]}"
    words = {
        DrainFinished: "drained",
        CheckRequested: "check",
        ProbeRequested: "probe",
        RankReset: "reset",
    }
    return f"{words[type(effect)]} {names[effect.rank]}"


def rules_of(case: dict[str, Any]) -> HealthRules:
    """Return the rules of a case, or raise ValueError for an unknown rule."""
    rules = CONFIGS[case["config"]]
    for name, value in case.get("overrides", {}).items():
        ours = next((n for n in (OVERRIDES.get(name), name, f"{name}_s") if n in rules._fields), "")
        if not ours:
            raise ValueError(f"unknown rule {name!r} in overrides")
        rules = rules._replace(**{ours: value})
    return rules


def play(case: dict[str, Any]) -> Iterator[Difference]:
    """Compare rows up to the first difference, from which later differences follow."""
    scene = Scene(case)
    for at, row in enumerate(case["rows"]):
        expected = {"actions": row["actions"], "after": row["after"]}
        found = list(differences(expected, scene.play(row["event"]), f"row {at} {row['event']}"))
        if found:
            yield from found
            return
