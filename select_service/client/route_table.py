"""Table of all routes: parameters and answers.  PURE.

A route is a value with typed parameters, so both clients need one line per route (`async_routes`,
`blocking_routes`). A test compares the table with the OpenAPI document of the service.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import NODEFAULT, Struct

from select_service.schemas import (
    admission,
    decisions,
    discovery,
    doctor,
    experiments,
    health,
    inspection,
    migrations,
    observation,
    persisted_state,
    policies,
    prompts,
    replicas,
    reservations,
    selection,
    workers,
)
from select_service.schemas.common import Scope, Status

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B", bound=Struct)
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
    """Make a route about one model and tenant, or about all."""
    path = name.split(" ")[1]

    def want(model_name: Text = None, tenant_id: Text = None) -> RouteCall:
        return RouteCall(path + _query_string(model_name=model_name, tenant_id=tenant_id))

    return ClientRoute(name, answer, want)


def _route_with_body(
    name: str, body: type[B], answer: type[A], repeats: RepeatPolicy = RepeatPolicy.FREELY
) -> ClientRoute[[B], A]:
    path = name.split(" ")[1]
    is_scoped = issubclass(body, Scope | workers.WorkerRegistration)
    return ClientRoute(
        name, answer, lambda given: RouteCall(path, non_default_fields(given), is_scoped), repeats
    )


def _route_by_name(name: str, answer: type[A]) -> ClientRoute[[str], A]:
    """Make a route about the object of a text id."""
    path = name.split(" ")[1]
    return ClientRoute(name, answer, lambda of_id: RouteCall(_fill_parameter(path, of_id)))


def _route_by_worker(name: str, answer: type[A]) -> ClientRoute[[int], A]:
    """Make a route about the worker of an id."""
    path = name.split(" ")[1]
    return ClientRoute(name, answer, lambda worker_id: RouteCall(_fill_parameter(path, worker_id)))


def _worker_route_with_body(
    name: str, body: type[B], answer: type[A], repeats: RepeatPolicy = RepeatPolicy.FREELY
) -> ClientRoute[[int, B], A]:
    path = name.split(" ")[1]

    def want(worker_id: int, given: B) -> RouteCall:
        return RouteCall(_fill_parameter(path, worker_id), non_default_fields(given))

    return ClientRoute(name, answer, want, repeats)


def _fill_parameter(path: str, value: str | int) -> str:
    begin, end = path.index("{"), path.index("}")
    return path[:begin] + quote(str(value), safe="") + path[end + 1 :]


def _query_string(**values: str | float | None) -> str:
    given = {name: _query_text(value) for name, value in values.items() if value is not None}
    return "?" + urlencode(given) if given else ""


def _query_text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Routes with parameters of their own


def _free_call(reservation_id: str, outcome: Text = None) -> RouteCall:
    return RouteCall(reservation_target(reservation_id) + _query_string(outcome=outcome))


def reservation_target(reservation_id: str, verb: str = "") -> str:
    """Return the path of a reservation, or of one of its verbs, which begins with a slash."""
    return f"/reservations/{quote(reservation_id, safe='')}{verb}"


def _output_block_call(reservation_id: str, decay_fraction: float | None = None) -> RouteCall:
    body = reservations.OutputBlockRequest(decay_fraction=decay_fraction)
    return RouteCall(reservation_target(reservation_id, "/output_block"), non_default_fields(body))


def _migrated_call(reservation_id: str, given: migrations.MigratedRequest) -> RouteCall:
    return RouteCall(reservation_target(reservation_id, "/migrated"), non_default_fields(given))


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


def _drain_call(
    worker_id: int, *, migrate: bool = True, by: health.DrainCaller = "operator"
) -> RouteCall:
    body = health.DrainRequest(migrate=migrate, by=by)
    return RouteCall(
        _fill_parameter("/workers/{worker_id}/drain", worker_id), non_default_fields(body)
    )


def _undrain_call(worker_id: int, *, by: health.DrainCaller = "operator") -> RouteCall:
    body = health.UndrainRequest(by=by)
    return RouteCall(
        _fill_parameter("/workers/{worker_id}/undrain", worker_id), non_default_fields(body)
    )


# Table of routes

_NEVER, _BY_NAME = RepeatPolicy.NEVER, RepeatPolicy.BY_NAME
_Json = dict[str, Any]

SELECT = _route_with_body("POST /select", selection.SelectRequest, selection.Selection)
SELECT_AND_RESERVE = _route_with_body(
    "POST /select_and_reserve", selection.SelectAndReserveRequest, selection.Selection, _BY_NAME
)
EXPLAIN = _route_with_body("POST /explain", selection.SelectRequest, decisions.DecisionView)
DECISIONS = ClientRoute("GET /decisions", decisions.DecisionList, _decisions_call)
DECISION = _route_by_name("GET /decisions/{decision_id}", decisions.DecisionView)

RESERVE = _route_with_body(
    "POST /reservations", reservations.ReservationRequest, reservations.Reservation, _BY_NAME
)
RESERVATIONS = ClientRoute("GET /reservations", reservations.ReservationPage, _reservations_call)
RESERVATION = _route_by_name("GET /reservations/{reservation_id}", reservations.ReservationRow)
PREFILL_COMPLETE = _route_by_name(
    "POST /reservations/{reservation_id}/prefill_complete", migrations.Done
)
OUTPUT_BLOCK = ClientRoute(
    "POST /reservations/{reservation_id}/output_block", migrations.Done, _output_block_call, _NEVER
)
RENEW = _route_by_name("POST /reservations/{reservation_id}/renew", migrations.Done)
FREE = ClientRoute("DELETE /reservations/{reservation_id}", migrations.Done, _free_call)
MIGRATED = ClientRoute(
    "POST /reservations/{reservation_id}/migrated", migrations.Confirmation, _migrated_call, _NEVER
)
MIGRATIONS = ClientRoute("GET /migrations", migrations.MigrationPage, _migrations_call)

WORKERS = _scoped_route("GET /workers", list[workers.WorkerRecord])
WORKER = _route_by_worker("GET /workers/{worker_id}", workers.WorkerRecord)
REGISTER = _route_with_body("POST /workers", workers.WorkerRegistration, workers.WorkerRecord)
PATCH = _worker_route_with_body(
    "PATCH /workers/{worker_id}", workers.WorkerPatch, workers.WorkerRecord
)
DELETE_WORKER = _route_by_worker("DELETE /workers/{worker_id}", workers.WorkerRecord)

STATE = _plain_route("GET /state", persisted_state.PersistedState)
DISCOVERY = _plain_route("GET /discovery", discovery.DiscoveryView)
FLEET_HEALTH = _scoped_route("GET /health/fleet", health.FleetHealth)
OUTCOME = _worker_route_with_body(
    "POST /workers/{worker_id}/outcome", health.OutcomeRequest, type(None), _NEVER
)
DRAIN = ClientRoute("POST /workers/{worker_id}/drain", health.WorkerDraining, _drain_call)
UNDRAIN = ClientRoute("POST /workers/{worker_id}/undrain", health.WorkerDraining, _undrain_call)
CHECK = _route_by_worker("POST /workers/{worker_id}/check", health.WorkerHealth)
LEARN = _route_with_body("POST /canary/learn", health.LearnRequest, Status)

SET_BUSY_THRESHOLD = _route_with_body(
    "POST /busy_threshold", admission.BusyThresholdChange, admission.BusyThresholdView
)
BUSY_THRESHOLDS = _plain_route("GET /busy_threshold", admission.BusyThresholdList)
SHED = _route_with_body("POST /admission/shed", admission.ShedRequest, admission.AdmissionState)
ADMISSION = _plain_route("GET /admission", admission.AdmissionState)

POLICY = _plain_route("GET /policy", policies.PolicyState)
SET_POLICY = _route_with_body("PUT /policy", policies.PolicyChange, policies.PolicyState)
REMOVE_POLICY = _scoped_route("DELETE /policy", policies.PolicyState)
SHADOW = _plain_route("GET /shadow", experiments.ShadowState)
BEGIN_EXPERIMENT = _route_with_body(
    "POST /experiments", experiments.ExperimentRequest, experiments.ExperimentView, _NEVER
)
EXPERIMENTS = _plain_route("GET /experiments", experiments.ExperimentList)
EXPERIMENT = _route_by_name("GET /experiments/{experiment_id}", experiments.ExperimentView)
END_EXPERIMENT = _route_by_name("DELETE /experiments/{experiment_id}", experiments.ExperimentView)

REGISTER_PEER = _route_with_body(
    "POST /replica_sync/register_peer", replicas.ReplicaPeerRequest, Status
)
DEREGISTER_PEER = _route_with_body(
    "POST /replica_sync/deregister_peer", replicas.ReplicaPeerRequest, Status
)
PEERS = _plain_route("GET /replica_sync/peers", list[str])
REPLICA_STATUS = _plain_route("GET /replica_sync/status", replicas.ReplicaStatus)

LOADS = _scoped_route("GET /loads", list[inspection.PartitionLoads])
POTENTIAL_LOADS = _route_with_body(
    "POST /potential_loads", prompts.PromptQuery, list[inspection.RankLoad]
)
OVERLAP_SCORES = _route_with_body(
    "POST /overlap_scores", prompts.PromptQuery, inspection.OverlapScores
)
OBSERVATION = ClientRoute("GET /planner/observation", observation.Observation, _observation_call)

DOCTOR = ClientRoute("GET /doctor", doctor.DoctorReport, _doctor_call)
CONFIG = _plain_route("GET /config", _Json)
SET_LOG_LEVEL = _route_with_body(
    "PUT /log_level", inspection.LogLevelChange, inspection.LogLevelView
)
HEALTH = _plain_route("GET /health", Status)
READY = _plain_route("GET /ready", workers.Ready, good=(503,))
METRICS = _plain_route("GET /metrics", str)
OPENAPI = _plain_route("GET /openapi.json", _Json)
DOCS = _plain_route("GET /docs", str)
DOCS_FILE = _route_by_name("GET /docs/{file}", str)

STREAMED: Mapping[str, str] = {"GET /dump": "dump", "GET /migrations/stream": "moves"}
"""Routes with answers in pieces, with their methods."""
