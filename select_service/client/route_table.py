"""Table of all routes: parameters and answers.  PURE.

A route is a value with typed parameters and a descriptor, so both clients share one line per route.
A test compares the table with the OpenAPI document of the service.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Any, Generic, NamedTuple, ParamSpec, Self, TypeVar, overload
from urllib.parse import quote, urlencode

import msgspec
from msgspec import NODEFAULT, Struct

from select_service.schemas.admission import (
    AdmissionState,
    BusyThresholdChange,
    BusyThresholdList,
    BusyThresholdView,
    ShedRequest,
)
from select_service.schemas.common import Scope, Status
from select_service.schemas.decisions import DecisionList, DecisionView
from select_service.schemas.discovery import DiscoveryView
from select_service.schemas.doctor import DoctorReport
from select_service.schemas.experiments import (
    ExperimentList,
    ExperimentRequest,
    ExperimentView,
    ShadowState,
)
from select_service.schemas.health import (
    DrainCaller,
    DrainRequest,
    FleetHealth,
    LearnRequest,
    OutcomeRequest,
    UndrainRequest,
    WorkerDraining,
    WorkerHealth,
)
from select_service.schemas.inspection import (
    LogLevelChange,
    LogLevelView,
    OverlapScores,
    PartitionLoads,
    RankLoad,
)
from select_service.schemas.migrations import Confirmation, Done, MigratedRequest, MigrationPage
from select_service.schemas.observation import Observation
from select_service.schemas.pairs import (
    LegMove,
    PairSelection,
    SelectPairAndReserveRequest,
    SelectPairRequest,
)
from select_service.schemas.persisted_state import PersistedState
from select_service.schemas.policies import PolicyChange, PolicyState
from select_service.schemas.prompts import PromptQuery
from select_service.schemas.rank_index import ClearedBlocks, ClearedCache
from select_service.schemas.replicas import ReplicaPeerRequest, ReplicaStatus
from select_service.schemas.reservations import (
    OutputBlockRequest,
    PrefillReport,
    Reservation,
    ReservationEnd,
    ReservationPage,
    ReservationRequest,
    ReservationRow,
)
from select_service.schemas.selection import SelectAndReserveRequest, Selection, SelectRequest
from select_service.schemas.sessions import SessionEnd, SessionPage, SessionRow
from select_service.schemas.shared_caches import SharedCacheList
from select_service.schemas.workers import Ready, WorkerPatch, WorkerRecord, WorkerRegistration

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B", bound=Struct)
K = TypeVar("K", str, int)
Text = str | None
Number = int | None


class RepeatPolicy(Enum):
    """Whether a call may be repeated while its effect is unknown."""

    FREELY = auto()
    BY_NAME = auto()
    """The body has a `reservation_id` and is marked as a repeat."""
    NEVER = auto()


class RouteCall(NamedTuple):
    """One call of a route.

    target: path and query, percent-encoded
    fields: fields of the body; None means no body
    is_scoped: whether the client's model and tenant are the defaults
    """

    target: str
    fields: dict[str, Any] | None = None
    is_scoped: bool = False


class ClientRoute(Generic[P, A]):
    """A method of a path.

    path: path as in the OpenAPI document, with `{name}` for the parameter
    answer: type of a good answer; `str` means its text
    want: function from the arguments of a call to its `RouteCall`
    good: statuses besides 2xx that are no refusals
    """

    def __init__(
        self,
        name: str,
        answer: type[A],
        want: Callable[P, RouteCall],
        repeats: RepeatPolicy = RepeatPolicy.FREELY,
        good: tuple[int, ...] = (),
    ) -> None:
        self.method, self.path = name.split(" ")
        self.answer = answer
        self.make_call = want
        self.repeats = repeats
        self.good_statuses = good
        self._decode = msgspec.json.Decoder(answer).decode

    @overload
    def __get__(self, selector: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, selector: "AsyncRoutes", owner: Any) -> Callable[P, Awaitable[A]]: ...
    @overload
    def __get__(self, selector: "BlockingRoutes", owner: Any) -> Callable[P, A]: ...
    def __get__(self, selector: "AsyncRoutes | BlockingRoutes | None", owner: Any) -> Any:
        """Return the route, or the method of a client that calls the route."""
        return self if selector is None else partial(selector.call, self)

    def decode_answer(self, content: bytes) -> A:
        """Decode a good answer.  Raises msgspec.DecodeError."""
        if self.answer is str:
            return content.decode(errors="replace")  # type: ignore[return-value]
        return self._decode(content or b"null")


def non_default_fields(body: Struct) -> dict[str, Any]:
    """Return the fields of a body with a value other than the default."""
    found = {}
    for field in msgspec.structs.fields(body):
        value = getattr(body, field.name)
        default = field.default
        if default is NODEFAULT and field.default_factory is not NODEFAULT:
            default = field.default_factory()
        if default is NODEFAULT or value != default:
            found[field.encode_name] = value
    return found


# Kinds of routes


def _plain_route(name: str, answer: type[A], good: tuple[int, ...] = ()) -> ClientRoute[[], A]:
    target = name.split(" ")[1]
    return ClientRoute(name, answer, lambda: RouteCall(target), good=good)


def _scoped_route(name: str, answer: type[A]) -> ClientRoute[[Text, Text], A]:
    """Make a route about a model and tenant, or about all."""
    path = name.split(" ")[1]

    def want(model_name: Text = None, tenant_id: Text = None) -> RouteCall:
        return RouteCall(path + _query_string(model_name=model_name, tenant_id=tenant_id))

    return ClientRoute(name, answer, want)


def _route_with_body(
    name: str, body: type[B], answer: type[A], repeats: RepeatPolicy = RepeatPolicy.FREELY
) -> ClientRoute[[B], A]:
    path = name.split(" ")[1]
    is_scoped = issubclass(body, Scope | WorkerRegistration)
    return ClientRoute(
        name, answer, lambda given: RouteCall(path, non_default_fields(given), is_scoped), repeats
    )


def _route_by_id(kind: type[K], name: str, answer: type[A]) -> ClientRoute[[K], A]:
    """Make a route about the object of an id.  kind: type of the id"""
    path = name.split(" ")[1]
    return ClientRoute(name, answer, lambda of_id: _object_call(path, of_id))


def _worker_route_with_body(
    name: str, body: type[B], answer: type[A], repeats: RepeatPolicy = RepeatPolicy.FREELY
) -> ClientRoute[[int, B], A]:
    path = name.split(" ")[1]
    return ClientRoute(
        name, answer, lambda worker_id, given: _object_call(path, worker_id, given), repeats
    )


def _object_call(path: str, of_id: str | int, body: Struct | None = None) -> RouteCall:
    """Return the call of a path with one parameter."""
    fields = None if body is None else non_default_fields(body)
    begin, end = path.index("{"), path.index("}")
    return RouteCall(path[:begin] + quote(str(of_id), safe="") + path[end + 1 :], fields)


def _query_string(**values: str | float | None) -> str:
    given = {name: _query_text(value) for name, value in values.items() if value is not None}
    return "?" + urlencode(given) if given else ""


def _query_text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Routes with parameters of their own


def _free_call(
    reservation_id: str, outcome: Text = None, output_token_ids: list[int] | None = None
) -> RouteCall:
    """Free a reservation; output_token_ids: tokens of the answer, for ranks without KV events"""
    target = reservation_target(reservation_id) + _query_string(outcome=outcome)
    if output_token_ids is None:
        return RouteCall(target)
    return RouteCall(target, non_default_fields(ReservationEnd(output_token_ids=output_token_ids)))


def _prefill_call(reservation_id: str, cached_tokens: int | None = None) -> RouteCall:
    """Report the end of a prefill; cached_tokens: prompt tokens that the engine had in its cache"""
    path = "/reservations/{}/prefill_complete"
    if cached_tokens is None:
        return _object_call(path, reservation_id)
    return _object_call(path, reservation_id, PrefillReport(cached_tokens=cached_tokens))


def _cache_call(worker_id: int, dp_rank: int | None = None) -> RouteCall:
    body = None if dp_rank is None else ClearedCache(dp_rank=dp_rank)
    return _object_call("/workers/{}/cache_cleared", worker_id, body)


def reservation_target(reservation_id: str, verb: str = "") -> str:
    """Return the path of a reservation, or of one of its verbs, which begins with a slash."""
    return f"/reservations/{quote(reservation_id, safe='')}{verb}"


def _output_block_call(reservation_id: str, decay_fraction: float | None = None) -> RouteCall:
    body = OutputBlockRequest(decay_fraction=decay_fraction)
    return _object_call("/reservations/{}/output_block", reservation_id, body)


def _move_leg_call(reservation_id: str, given: LegMove) -> RouteCall:
    return _object_call("/reservations/{}/move", reservation_id, given)


def _migrated_call(reservation_id: str, given: MigratedRequest) -> RouteCall:
    return _object_call("/reservations/{}/migrated", reservation_id, given)


def _reservations_call(
    model_name: Text = None,
    tenant_id: Text = None,
    worker_id: Number = None,
    *,
    limit: Number = None,
    after: Text = None,
    sequence_hashes: bool = False,
) -> RouteCall:
    scope = {"model_name": model_name, "tenant_id": tenant_id, "worker_id": worker_id}
    hashes = sequence_hashes or None
    page = _query_string(**scope, limit=limit, after=after, sequence_hashes=hashes)
    return RouteCall("/reservations" + page)


def _sessions_call(
    model_name: Text = None,
    tenant_id: Text = None,
    *,
    limit: Number = None,
    after: Text = None,
    parts: Number = None,
) -> RouteCall:
    scope = {"model_name": model_name, "tenant_id": tenant_id}
    page = _query_string(**scope, limit=limit, after=after, parts=parts)
    return RouteCall("/sessions" + page)


def _session_call(session_id: str, model_name: Text = None, tenant_id: Text = None) -> RouteCall:
    target = f"/sessions/{quote(session_id, safe='')}"
    return RouteCall(target + _query_string(model_name=model_name, tenant_id=tenant_id))


def _decisions_call(
    model_name: Text = None,
    tenant_id: Text = None,
    worker_id: Number = None,
    limit: Number = None,
) -> RouteCall:
    scope = {"model_name": model_name, "tenant_id": tenant_id, "worker_id": worker_id}
    return RouteCall("/decisions" + _query_string(**scope, limit=limit))


def _observation_call(
    window_s: Number = None, model_name: Text = None, tenant_id: Text = None
) -> RouteCall:
    query = _query_string(window_s=window_s, model_name=model_name, tenant_id=tenant_id)
    return RouteCall("/planner/observation" + query)


def _doctor_call(
    worker_id: Number = None,
    after: Number = None,
    limit: Number = None,
    probe: bool | None = None,
) -> RouteCall:
    return RouteCall(
        "/doctor" + _query_string(worker_id=worker_id, after=after, limit=limit, probe=probe)
    )


def _migrations_call(after: Number = None, timeout_ms: Number = None) -> RouteCall:
    return RouteCall("/migrations" + _query_string(after=after, timeout_ms=timeout_ms))


def _drain_call(worker_id: int, *, migrate: bool = True, by: DrainCaller = "operator") -> RouteCall:
    return _object_call("/workers/{}/drain", worker_id, DrainRequest(migrate=migrate, by=by))


def _undrain_call(worker_id: int, *, by: DrainCaller = "operator") -> RouteCall:
    return _object_call("/workers/{}/undrain", worker_id, UndrainRequest(by=by))


# Table of routes

_NEVER, _BY_NAME = RepeatPolicy.NEVER, RepeatPolicy.BY_NAME
_Json = dict[str, Any]

SELECT_AND_RESERVE = _route_with_body(
    "POST /select_and_reserve", SelectAndReserveRequest, Selection, _BY_NAME
)
SELECT_PAIR_AND_RESERVE = _route_with_body(
    "POST /select_pair_and_reserve", SelectPairAndReserveRequest, PairSelection, _NEVER
)
RESERVE = _route_with_body("POST /reservations", ReservationRequest, Reservation, _BY_NAME)

STREAMED: Mapping[str, str] = {"GET /dump": "dump", "GET /migrations/stream": "moves"}
"""Routes with answers in pieces, with their methods."""


class SelectorRoutes:
    """All routes that create no reservation; docs/reference/api.md describes them.

    A route of the class is the `ClientRoute`; of a client, the method that calls it.  The methods
    raise SelectorError.
    """

    select = _route_with_body("POST /select", SelectRequest, Selection)
    select_pair = _route_with_body("POST /select_pair", SelectPairRequest, PairSelection)
    explain = _route_with_body("POST /explain", SelectRequest, DecisionView)
    decisions = ClientRoute("GET /decisions", DecisionList, _decisions_call)
    decision = _route_by_id(str, "GET /decisions/{decision_id}", DecisionView)

    reservations = ClientRoute("GET /reservations", ReservationPage, _reservations_call)
    reservation = _route_by_id(str, "GET /reservations/{reservation_id}", ReservationRow)
    prefill_complete = ClientRoute(
        "POST /reservations/{reservation_id}/prefill_complete", Done, _prefill_call
    )
    first_token = _route_by_id(str, "POST /reservations/{reservation_id}/first_token", Done)
    move_leg = ClientRoute(
        "POST /reservations/{reservation_id}/move", PairSelection, _move_leg_call, _NEVER
    )
    output_block = ClientRoute(
        "POST /reservations/{reservation_id}/output_block", Done, _output_block_call, _NEVER
    )
    renew = _route_by_id(str, "POST /reservations/{reservation_id}/renew", Done)
    free = ClientRoute("DELETE /reservations/{reservation_id}", Done, _free_call)
    migrated = ClientRoute(
        "POST /reservations/{reservation_id}/migrated", Confirmation, _migrated_call, _NEVER
    )
    migrations = ClientRoute("GET /migrations", MigrationPage, _migrations_call)

    sessions = ClientRoute("GET /sessions", SessionPage, _sessions_call)
    session = ClientRoute("GET /sessions/{session_id}", SessionRow, _session_call)
    end_session = ClientRoute("DELETE /sessions/{session_id}", SessionEnd, _session_call)

    workers = _scoped_route("GET /workers", list[WorkerRecord])
    worker = _route_by_id(int, "GET /workers/{worker_id}", WorkerRecord)
    register = _route_with_body("POST /workers", WorkerRegistration, WorkerRecord)
    patch = _worker_route_with_body("PATCH /workers/{worker_id}", WorkerPatch, WorkerRecord)
    cache_cleared = ClientRoute(
        "POST /workers/{worker_id}/cache_cleared", ClearedBlocks, _cache_call
    )
    delete_worker = _route_by_id(int, "DELETE /workers/{worker_id}", WorkerRecord)

    state = _plain_route("GET /state", PersistedState)
    discovery = _plain_route("GET /discovery", DiscoveryView)
    fleet_health = _scoped_route("GET /health/fleet", FleetHealth)
    outcome = _worker_route_with_body(
        "POST /workers/{worker_id}/outcome", OutcomeRequest, type(None), _NEVER
    )
    drain = ClientRoute("POST /workers/{worker_id}/drain", WorkerDraining, _drain_call)
    undrain = ClientRoute("POST /workers/{worker_id}/undrain", WorkerDraining, _undrain_call)
    check = _route_by_id(int, "POST /workers/{worker_id}/check", WorkerHealth)
    learn = _route_with_body("POST /canary/learn", LearnRequest, Status)

    set_busy_threshold = _route_with_body(
        "POST /busy_threshold", BusyThresholdChange, BusyThresholdView
    )
    busy_thresholds = _plain_route("GET /busy_threshold", BusyThresholdList)
    shed = _route_with_body("POST /admission/shed", ShedRequest, AdmissionState)
    admission = _plain_route("GET /admission", AdmissionState)

    policy = _plain_route("GET /policy", PolicyState)
    set_policy = _route_with_body("PUT /policy", PolicyChange, PolicyState)
    remove_policy = _scoped_route("DELETE /policy", PolicyState)
    shadow = _plain_route("GET /shadow", ShadowState)
    begin_experiment = _route_with_body(
        "POST /experiments", ExperimentRequest, ExperimentView, _NEVER
    )
    experiments = _plain_route("GET /experiments", ExperimentList)
    experiment = _route_by_id(str, "GET /experiments/{experiment_id}", ExperimentView)
    end_experiment = _route_by_id(str, "DELETE /experiments/{experiment_id}", ExperimentView)

    register_peer = _route_with_body("POST /replica_sync/register_peer", ReplicaPeerRequest, Status)
    deregister_peer = _route_with_body(
        "POST /replica_sync/deregister_peer", ReplicaPeerRequest, Status
    )
    peers = _plain_route("GET /replica_sync/peers", list[str])
    replica_status = _plain_route("GET /replica_sync/status", ReplicaStatus)

    loads = _scoped_route("GET /loads", list[PartitionLoads])
    potential_loads = _route_with_body("POST /potential_loads", PromptQuery, list[RankLoad])
    overlap_scores = _route_with_body("POST /overlap_scores", PromptQuery, OverlapScores)
    observation = ClientRoute("GET /planner/observation", Observation, _observation_call)

    shared_caches = _plain_route("GET /shared_caches", SharedCacheList)

    doctor = ClientRoute("GET /doctor", DoctorReport, _doctor_call)
    config = _plain_route("GET /config", _Json)
    set_log_level = _route_with_body("PUT /log_level", LogLevelChange, LogLevelView)
    health = _plain_route("GET /health", Status)
    ready = _plain_route("GET /ready", Ready, good=(503,))
    metrics = _plain_route("GET /metrics", str)
    openapi = _plain_route("GET /openapi.json", _Json)
    docs = _plain_route("GET /docs", str)
    docs_file = _route_by_id(str, "GET /docs/{file}", str)


class AsyncRoutes(SelectorRoutes, ABC):
    """Routes as coroutine methods: `await selector.loads()`."""

    @abstractmethod
    async def call(self, route: ClientRoute[P, A], *args: P.args, **kwargs: P.kwargs) -> A:
        """Call a route that creates no reservation.  Raises SelectorError."""


class BlockingRoutes(SelectorRoutes, ABC):
    """Routes as blocking methods: `selector.loads()`."""

    @abstractmethod
    def call(self, route: ClientRoute[P, A], *args: P.args, **kwargs: P.kwargs) -> A:
        """Call a route that creates no reservation.  Raises SelectorError."""
