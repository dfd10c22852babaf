"""Knowledge of a selector about caches: events in time or late, none, or an unseen host tier."""

from typing import NamedTuple

from select_service.sim.engine.core_router import CacheKnowledge
from select_service.sim.engine.gpu_hardware import Fleet

NO_EVENTS = CacheKnowledge(has_events=False)
ASSUMED = CacheKnowledge(has_events=False, assumes=True)
UNDECLARED = ASSUMED._replace(declared=None)
LEARNED = UNDECLARED._replace(reports_cached=True)
UNSEEN_TIERS = CacheKnowledge(has_unseen_tiers=True)


class Situation(NamedTuple):
    """Situation of a selector.

    delay_s: from the end of a step to the arrival of its events
    cache:   size of the device cache, in that of the fleet
    host:    size of a host tier without events, in device caches
    """

    knowledge: CacheKnowledge = CacheKnowledge()
    delay_s: float = 0.01
    cache: float = 1.0
    host: int = 0

    def change_fleet(self, fleet: Fleet) -> Fleet:
        """Return the fleet with the caches of the situation."""
        blocks = [int(self.cache * hardware.kv_blocks) for hardware in fleet]
        return tuple(
            hardware._replace(declared_blocks=n, host_blocks=self.host * n)
            for hardware, n in zip(fleet, blocks, strict=True)
        )


SITUATIONS = {
    "exact": Situation(),
    "1 s late": Situation(delay_s=1.0),
    "host unseen": Situation(UNSEEN_TIERS, host=4),
    "host unseen, half": Situation(UNSEEN_TIERS, cache=0.5, host=4),
    "assumed": Situation(ASSUMED),
    "assumed, answers": Situation(ASSUMED._replace(reports_answers=True)),
    "assumed, 0.8": Situation(ASSUMED._replace(declared=0.8)),
    "assumed, learned": Situation(LEARNED),
    "assumed, learned, answers": Situation(LEARNED._replace(reports_answers=True)),
    "assumed, 30 s": Situation(UNDECLARED._replace(ttl_s=30.0)),
    "assumed, 120 s": Situation(UNDECLARED._replace(ttl_s=120.0)),
    "no index": Situation(NO_EVENTS),
}
INFORMED = ("work", "work, session", "reference")
BLIND = ("hash", "bounded hash", "prefix tree")
HEURISTICS = (
    *("reference", "Dynamo predicted", "LMetric", "LMetric u", "LMetric runs"),
    *("llm-d", "llm-d speculative", "load-aware", "load-aware 0.5", "AIBrix"),
    *("prefix tree", "bounded hash", "hash", "least requests"),
)
CHOOSER_SETS = {
    "heuristics": ["work", *HEURISTICS],
    # Blind routers do the same with and without events, so `exact` serves as `no index`, too.
    "sessions": [
        *(
            f"{router} in {name}"
            for name in ("exact", "host unseen", "host unseen, half")
            for router in (*INFORMED, *BLIND)
        ),
        *(f"{router} in {name}" for name in ("assumed, 0.8", "no index") for router in INFORMED),
    ],
    "indexes": [
        "work in exact",
        "trial no leading run in exact",
        "trial no leading run in 1 s late",
        *(f"work in {name}" for name in SITUATIONS if name != "exact" and "host" not in name),
        "work, session in assumed",
        "work, session in no index",
    ],
}
"""Choosers by the name of the set."""
