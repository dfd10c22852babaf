"""Fleets of engines with an endpoint each, of which one or all become faulty."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from tests.builders import worker_body
from tests.builders.decoder import Decoder, Flip
from tests.builders.in_thread import InThread
from tests.builders.polling import eventually
from tests.builders.served_engines import ServedEngines
from tests.builders.toy_engine import Fault, ToyEngine, drifted, truncated, wrong_token

SIZE, SICK = 4, 2
TOP_EXPONENT = 14
SLOW_S = 1.0
NOISE = 0.01


class FleetEngine(NamedTuple):
    """Engine of one rank, and its worker."""

    worker_id: int
    engine: ToyEngine
    decoder: Decoder
    endpoint: str
    engines: ServedEngines


Break = Callable[[FleetEngine], None]


def fault(given: Fault) -> Break:
    def begin(served: FleetEngine) -> None:
        served.engine.faults[0] = given

    return begin


def flip(served: FleetEngine) -> None:
    """Flip a weight of the first matrix that every token passes."""
    served.decoder.flip(Flip("query0", 0, TOP_EXPONENT))


def nan(served: FleetEngine) -> None:
    served.decoder.spoil()


def noise(served: FleetEngine) -> None:
    served.engine.models[0] = partial(served.decoder.generate, noise=NOISE)


def update(served: FleetEngine) -> None:
    served.engine.models[0] = Decoder(2).generate


def crash(served: FleetEngine) -> None:
    served.engines.crash(served.endpoint)


class Case(NamedTuple):
    """Fault of a fleet and its expected result.

    causes: possible causes of the ejection; empty means the rank stays
    decodes: whether the engines run a model instead of a formula
    everywhere: whether all engines are faulty instead of one
    """

    begin: Break
    causes: tuple[str, ...] = ()
    decodes: bool = False
    size: int = SIZE
    everywhere: bool = False


WRONG = ("token_mismatch", "logit_drift")
CASES: dict[str, Case] = {
    "flip": Case(flip, WRONG, True),
    "nan": Case(nan, WRONG, True),
    "noise": Case(noise, decodes=True),
    "wrong_token": Case(fault(Fault(wrong_token)), ("token_mismatch",)),
    "drift": Case(fault(Fault(drifted)), ("logit_drift",)),
    "truncated": Case(fault(Fault(truncated)), ("token_mismatch",)),
    "hang": Case(fault(Fault(hangs=True)), ("timeout",)),
    "slow": Case(fault(Fault(seconds_to_wait=SLOW_S)), ("latency_spike",)),
    "500": Case(fault(Fault(status=500)), ("http_5xx",)),
    "reset": Case(fault(Fault(resets=True)), ("connect",)),
    "cut": Case(fault(Fault(cuts=True)), ("malformed",)),
    "crash": Case(crash, ("connect",)),
    "400": Case(fault(Fault(status=400))),
    "429": Case(fault(Fault(status=429, times=8))),  # ten consecutive answers are too many
}
"""Faults of a single engine out of four."""
WHOLE: dict[str, Case] = {
    "update": Case(update, decodes=True, everywhere=True),
    "network": Case(fault(Fault(hangs=True)), everywhere=True),
    "alone_slow": Case(fault(Fault(seconds_to_wait=SLOW_S)), size=1),
    "alone_wrong": Case(fault(Fault(wrong_token)), ("token_mismatch",), size=1),
}
"""Faults of all engines of a fleet."""


class Fleet:
    """Fleet of one case; the model is named after the case."""

    def __init__(self, service: InThread, engines: ServedEngines, name: str, first_id: int) -> None:
        self.name, self.case = name, (CASES | WHOLE)[name]
        self._before: list[int] = []
        self.sick_at = SICK if self.case.size > SICK else 0
        self._service = service
        self.served = [self._start_engine(engines, first_id + n) for n in range(self.case.size)]
        for served in self.served:
            body = worker_body(served.worker_id, model_name=name, endpoint=served.endpoint)
            assert service.call("POST", "/workers", body).status == 201

    def _start_engine(self, engines: ServedEngines, worker_id: int) -> FleetEngine:
        engine, decoder = ToyEngine(), Decoder(1)
        if self.case.decodes:
            engine.models[0] = decoder.generate
        return FleetEngine(worker_id, engine, decoder, engines.serve(engine), engines)

    def begin(self) -> None:
        """Make the third engine faulty, or all engines."""
        self._before = self.count_requests()
        for served in self.served if self.case.everywhere else [self.served[self.sick_at]]:
            self.case.begin(served)

    def ranks(self) -> list[dict[str, Any]]:
        path = f"/health/fleet?model_name={self.name}"
        (partition,) = self._service.call("GET", path).body["partitions"]
        return partition["ranks"]

    def sick(self) -> dict[str, Any]:
        return self.ranks()[self.sick_at]

    def others(self) -> list[dict[str, Any]]:
        return [rank for n, rank in enumerate(self.ranks()) if n != self.sick_at]

    def is_out(self) -> bool:
        return not serves(self.sick())

    def out(self) -> int:
        """Return how many ranks are ejected."""
        return sum(not serves(rank) for rank in self.ranks())

    def count_requests(self) -> list[int]:
        """Return the number of requests per engine."""
        return [len(served.engine.requests) for served in self.served]

    def count_new_requests(self) -> list[int]:
        """Return the number of requests per engine since the fault began."""
        return [now - then for now, then in zip(self.count_requests(), self._before, strict=True)]

    def wait_for_checks(self, checks: int) -> None:
        """Wait until all engines have passed this many checks."""
        eventually(lambda: min(self.count_requests()) >= checks)
        eventually(lambda: all(rank["last_result"] == "pass" for rank in self.ranks()))

    def choose_workers(self, count: int) -> set[int]:
        """Return the workers that this many requests are routed to."""
        body = {"model_name": self.name, "token_ids": list(range(8))}
        answers = [self._service.call("POST", "/select", body) for _ in range(count)]
        return {answer.body["worker_id"] for answer in answers}


def serves(rank: dict[str, Any]) -> bool:
    """Return whether the rank receives requests."""
    return rank["state"] in ("healthy", "suspicious")


def start_fleets(
    service: InThread, engines: ServedEngines, names: Iterable[str]
) -> dict[str, Fleet]:
    """Return the fleets by case name."""
    return {name: Fleet(service, engines, name, 1 + n * SIZE) for n, name in enumerate(names)}
