"""Fleets of engines, each with an endpoint of its own, of which one or all become faulty."""

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


class Served(NamedTuple):
    """One engine of one rank."""

    worker_id: int
    engine: ToyEngine
    decoder: Decoder
    endpoint: str
    engines: ServedEngines


Break = Callable[[Served], None]


def fault(given: Fault) -> Break:
    def begin(served: Served) -> None:
        served.engine.faults[0] = given

    return begin


def flip(served: Served) -> None:
    """A weight of the first matrix that every token passes."""
    served.decoder.flip(Flip("query0", 0, TOP_EXPONENT))


def nan(served: Served) -> None:
    served.decoder.spoil()


def noise(served: Served) -> None:
    served.engine.models[0] = partial(served.decoder.generate, noise=NOISE)


def update(served: Served) -> None:
    served.engine.models[0] = Decoder(2).generate


def crash(served: Served) -> None:
    served.engines.crash(served.endpoint)


class Case(NamedTuple):
    """causes: for which the rank is taken out; none: it stays

    decodes: has a model, not a formula;  everywhere: not one is faulty, but all
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
    "429": Case(fault(Fault(status=429, times=8))),  # ten in a row are too many
}
"""One of four is faulty."""
WHOLE: dict[str, Case] = {
    "update": Case(update, decodes=True, everywhere=True),
    "network": Case(fault(Fault(hangs=True)), everywhere=True),
    "alone_slow": Case(fault(Fault(seconds_to_wait=SLOW_S)), size=1),
    "alone_wrong": Case(fault(Fault(wrong_token)), ("token_mismatch",), size=1),
}
"""All of a fleet are."""


class Fleet:
    """Of one case; the model has its name."""

    def __init__(self, service: InThread, engines: ServedEngines, name: str, first_id: int) -> None:
        self.name, self.case = name, (CASES | WHOLE)[name]
        self._before: list[int] = []
        self.sick_at = SICK if self.case.size > SICK else 0
        self._service = service
        self.served = [self._begun(engines, first_id + n) for n in range(self.case.size)]
        for served in self.served:
            body = worker_body(served.worker_id, model_name=name, endpoint=served.endpoint)
            assert service.call("POST", "/workers", body).status == 201

    def _begun(self, engines: ServedEngines, worker_id: int) -> Served:
        engine, decoder = ToyEngine(), Decoder(1)
        if self.case.decodes:
            engine.models[0] = decoder.generate
        return Served(worker_id, engine, decoder, engines.serve(engine), engines)

    def begin(self) -> None:
        """From now on the third one is faulty, or all are."""
        self._before = self.asked()
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
        """How many are."""
        return sum(not serves(rank) for rank in self.ranks())

    def asked(self) -> list[int]:
        """How many requests each has had."""
        return [len(served.engine.requests) for served in self.served]

    def asked_since(self) -> list[int]:
        """Since it began."""
        return [now - then for now, then in zip(self.asked(), self._before, strict=True)]

    def learns(self, checks: int) -> None:
        """Until all have passed so many."""
        eventually(lambda: min(self.asked()) >= checks)
        eventually(lambda: all(rank["last_result"] == "pass" for rank in self.ranks()))

    def chosen(self, count: int) -> set[int]:
        """To whom so many requests go."""
        body = {"model_name": self.name, "token_ids": list(range(8))}
        answers = [self._service.call("POST", "/select", body) for _ in range(count)]
        return {answer.body["worker_id"] for answer in answers}


def serves(rank: dict[str, Any]) -> bool:
    """Does it get requests?"""
    return rank["state"] in ("healthy", "suspicious")


def begun(service: InThread, engines: ServedEngines, names: Iterable[str]) -> dict[str, Fleet]:
    """By name of the case."""
    return {name: Fleet(service, engines, name, 1 + n * SIZE) for n, name in enumerate(names)}
