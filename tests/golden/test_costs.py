"""Tests of every candidate's cost in the golden exchanges, in process: HTTP does not show costs."""

import itertools
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import msgspec
import pytest

from indexer.events.event_feed import EventFeed
from indexer.events.kv_event_source import KvSource
from indexer.index.prefix_index import PrefixIndex
from select_service.base.errors import SelectError
from select_service.core.placement.router_config import RouterConfig
from select_service.core.selector import PlacementDecision
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.http.lenient_decode import BodySchema
from select_service.schemas.reservations import OutputBlockRequest, ReservationRequest
from select_service.schemas.selection import SelectAndReserveRequest, SelectRequest
from select_service.schemas.workers import WorkerPatch, WorkerRegistration
from tests.golden import deviations, exchanges
from tests.golden.kv_publisher import batch

WITH_COSTS = [
    name for name in exchanges.NAMES if any("costs" in step for step in exchanges.read(name)[1])
]
BLOCKS_MAX = 10_000
ROUNDING = 0.0011
"""Rounding error: both sides log three decimals."""

T = TypeVar("T")


class InProcess:
    """Selector behind the calls of a scenario; refusals are not compared here."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.selector = build_selector(
            SelectorConfig(
                _config(environment), use_kv_events=environment.get("DYN_USE_KV_EVENTS") != "false"
            ),
            lambda: PrefixIndex(BLOCKS_MAX),
            rng=Random(1),
        )
        self._clock = itertools.count()
        self._sources: dict[int, list[KvSource]] = {}
        self._feeds: dict[str, tuple[EventFeed, Any]] = {}
        self._next_seq: dict[str, int] = {}

    def publish(self, port: str, payload: bytes) -> None:
        self._sources |= self.selector.fleet.take_changes().sources
        every = (source for sources in self._sources.values() for source in sources)
        source = {each.endpoint.rsplit(":", 1)[1]: each for each in every}[port]
        feed, fed_source = self._feeds.get(port, (None, None))
        if feed is None or fed_source.writers != source.writers:
            feed = EventFeed(source)
            self._feeds[port] = (feed, source)
        seq = self._next_seq.get(port, 0)
        self._next_seq[port] = seq + 1
        feed.receive(seq, payload, float(next(self._clock)))

    def call(self, step: dict[str, Any]) -> PlacementDecision | None:
        """Make a call; return the decision if there is one, or None if the call is refused."""
        method, path, body, _ = exchanges.request_of(step)
        try:
            return self._routes(path)[method](body or b"{}")
        except (SelectError, msgspec.ValidationError, msgspec.DecodeError):
            return None

    def _routes(self, path: str) -> dict[str, Callable[[bytes], Any]]:
        now, selector = float(next(self._clock)), self.selector
        parts = path.split("?")[0].strip("/").split("/")
        match parts:
            case ["workers"]:
                return _posted(lambda b: selector.register_worker(_read(b, WorkerRegistration)))
            case ["workers", worker_id]:
                key = int(worker_id)
                return {
                    "PATCH": lambda b: selector.patch_worker(key, _read(b, WorkerPatch)),
                    "DELETE": lambda _: selector.delete_worker(key, 0.0),
                }
            case ["select"]:
                return _posted(
                    lambda b: selector.select(_read(b, SelectRequest), 0.0, explain=True)
                )
            case ["select_and_reserve"]:
                kind = SelectAndReserveRequest
                return _posted(
                    lambda b: selector.select_and_reserve(_read(b, kind), now, explain=True)
                )
            case ["reservations"]:
                reservation = ReservationRequest
                return _posted(lambda b: selector.reserve(_read(b, reservation), now))
            case ["reservations", name]:
                return {"DELETE": lambda _: selector.free_reservation(name, 0.0)}
            case ["reservations", name, "prefill_complete"]:
                return _posted(lambda _: selector.complete_prefill(name, now))
            case ["reservations", name, "output_block"]:
                return _posted(lambda b: self._output_block(name, b, now))
        return {method: lambda _: None for method in ("GET", "POST", "PUT", "HEAD", "DELETE")}

    def _output_block(self, name: str, body: bytes, now: float) -> None:
        given = _read(body, OutputBlockRequest)
        self.selector.add_output_block(name, given.decay_fraction, now)


def _read(body: bytes, kind: type[T]) -> T:
    """Decode a body as the interface does, without unknown fields."""
    form = BodySchema(kind)
    return form.decode(form.prune_body(body).body)


def _posted(action: Callable[[bytes], Any]) -> dict[str, Callable[[bytes], Any]]:
    return {"POST": action, "GET": lambda _: None}


def _config(environment: dict[str, str]) -> RouterConfig:
    config = RouterConfig(policy="reference")
    credit = environment.get("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT")
    weight = environment.get("DYN_OVERLAP_SCORE_WEIGHT")
    if credit is not None:
        config = config._replace(overlap_score_credit=float(credit))
    if weight is not None:
        assert float(weight) == 0
        config = config._replace(prefill_load_scale=0.0, overlap_score_credit=0.0)
    return config._replace(
        track_prefill_tokens=environment.get("DYN_ROUTER_TRACK_PREFILL_TOKENS") != "false",
        track_active_blocks=environment.get("DYN_ROUTER_TRACK_ACTIVE_BLOCKS") != "false",
    )


@pytest.mark.parametrize("scenario", WITH_COSTS)
def test_the_terms_of_every_candidate_are_those_of_the_reference(scenario: str) -> None:
    head, steps = exchanges.read(scenario)
    ports = {name: int(name) for name in exchanges.ports_named_in(steps)}
    service, found = InProcess(head["environment"]), {}
    for template in steps:
        if "settle" in template:
            continue
        step = exchanges.with_ports(deviations.rewritten(scenario, template), ports)
        if "publish" in step:
            service.publish(step["publish"], batch(step["events"]))
            continue
        if "background" in step:
            break  # from here on the queue decides as well, see test_http_exchanges
        decision = service.call(step)
        if "costs" not in step:
            continue
        ours = {} if decision is None else _terms(decision)
        for rank in sorted(ours.keys() | step["costs"].keys()):
            place = f"{step['step']}/costs/{rank}"
            reference, terms = step["costs"].get(rank, []), ours.get(rank, [])
            if terms != pytest.approx(reference, abs=ROUNDING):
                found[place] = (reference, terms)
    complaints = deviations.unexpected(scenario, found, "cost_deviation")
    assert not complaints, "\n".join(complaints)


def _terms(decision: PlacementDecision) -> dict[str, list[float]]:
    """Return cost, prefill blocks before the credit, credit and decode blocks."""
    names = ("cost", "raw", "credit", "decode")
    return {
        f"{row['worker_id']}/{row['dp_rank']}": [float(row[name]) for name in names]
        for row in decision.candidates or ()
    }
