"""Every route of the service: what a call of it takes, and what it answers.  PURE.

A route is a value whose parameters are typed, so that both faces have one line for each of them
(`async_routes`, `sync_routes`), and a test holds the table against the service's own document.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import NODEFAULT, Struct

from select_service.bodies import (
    admission,
    comparing,
    decisions,
    discovery,
    doctor,
    health,
    inspection,
    migrations,
    observation,
    policies,
    prompts,
    replicas,
    reservations,
    selection,
    state,
    workers,
)
from select_service.bodies.common import Scope, Status

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B", bound=Struct)
Text = str | None
Number = int | None


class Repeats(Enum):
    """May a call be made again when nobody knows whether it was done?"""

    FREELY = auto()
    BY_NAME = auto()
    """The body has a `reservation_id`, and says that it is a repeat."""
    NEVER = auto()


class Wanted(NamedTuple):
    """One call of a route.

    target: path and query, percent-encoded
    fields: of the body; None: there is none
    is_scoped: its model and tenant, when left out, are those of the selector
    """

    target: str
    fields: dict[str, Any] | None = None
    is_scoped: bool = False


class Route(Generic[P, A]):
    """One method of one path.

    path: as in the service's document, with `{name}` of its parameter
    answer: what a good answer is decoded as; `str`: its text
    want: what the arguments of a call make of it
    good: statuses that are no refusals, besides 2xx
    """

    def __init__(
        self,
        name: str,
        answer: type[A],
        want: Callable[P, Wanted],
        repeats: Repeats = Repeats.FREELY,
        good: tuple[int, ...] = (),
    ) -> None:
        self.method, self.path = name.split(" ")
        self.answer = answer
        self.want = want
        self.repeats = repeats
        self.good = good
        self._decode = msgspec.json.Decoder(answer).decode

    def read(self, content: bytes) -> A:
        """A good answer.  Raises msgspec.DecodeError."""
        if self.answer is str:
            return content.decode(errors="replace")  # type: ignore[return-value]
        return self._decode(content or b"null")


def sparse(body: Struct) -> dict[str, Any]:
    """The fields of a body that are not as they are when left out."""
    found = {}
    for field in msgspec.structs.fields(body):
        value = getattr(body, field.name)
        default = field.default
        if default is NODEFAULT and field.default_factory is not NODEFAULT:
            default = field.default_factory()
        if default is NODEFAULT or value != default:
            found[field.encode_name] = value
    return found


# --- forms of routes


def _plain(name: str, answer: type[A], good: tuple[int, ...] = ()) -> Route[[], A]:
    target = name.split(" ")[1]
    return Route(name, answer, lambda: Wanted(target), good=good)


def _scoped(name: str, answer: type[A]) -> Route[[Text, Text], A]:
    """Of one model and tenant, or of all."""
    path = name.split(" ")[1]

    def want(model_name: Text = None, tenant_id: Text = None) -> Wanted:
        return Wanted(path + _query(model_name=model_name, tenant_id=tenant_id))

    return Route(name, answer, want)


def _bodied(
    name: str, body: type[B], answer: type[A], repeats: Repeats = Repeats.FREELY
) -> Route[[B], A]:
    path = name.split(" ")[1]
    is_scoped = issubclass(body, Scope | workers.WorkerRegistration)
    return Route(name, answer, lambda given: Wanted(path, sparse(given), is_scoped), repeats)


def _named(name: str, answer: type[A]) -> Route[[str], A]:
    """About the thing of this id."""
    path = name.split(" ")[1]
    return Route(name, answer, lambda of_id: Wanted(_filled(path, of_id)))


def _numbered(name: str, answer: type[A]) -> Route[[int], A]:
    """About the worker of this id."""
    path = name.split(" ")[1]
    return Route(name, answer, lambda worker_id: Wanted(_filled(path, worker_id)))


def _about_worker(
    name: str, body: type[B], answer: type[A], repeats: Repeats = Repeats.FREELY
) -> Route[[int, B], A]:
    path = name.split(" ")[1]

    def want(worker_id: int, given: B) -> Wanted:
        return Wanted(_filled(path, worker_id), sparse(given))

    return Route(name, answer, want, repeats)


def _filled(path: str, value: str | int) -> str:
    begin, end = path.index("{"), path.index("}")
    return path[:begin] + quote(str(value), safe="") + path[end + 1 :]


def _query(**values: str | float | None) -> str:
    given = {name: _text(value) for name, value in values.items() if value is not None}
    return "?" + urlencode(given) if given else ""


def _text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- parameters of their own


def _want_free(reservation_id: str, outcome: Text = None) -> Wanted:
    return Wanted(reservation_target(reservation_id) + _query(outcome=outcome))


def reservation_target(reservation_id: str, verb: str = "") -> str:
    """The path of a reservation, or of a verb of it that begins with a slash."""
    return f"/reservations/{quote(reservation_id, safe='')}{verb}"


def _want_output_block(reservation_id: str, decay_fraction: float | None = None) -> Wanted:
    body = reservations.OutputBlockRequest(decay_fraction=decay_fraction)
    return Wanted(reservation_target(reservation_id, "/output_block"), sparse(body))


def _want_migrated(reservation_id: str, given: migrations.MigratedRequest) -> Wanted:
    return Wanted(reservation_target(reservation_id, "/migrated"), sparse(given))


def _want_reservations(
    model_name: Text = None,
    tenant_id: Text = None,
    worker_id: Number = None,
    *,
    limit: Number = None,
    after: Text = None,
    sequence_hashes: bool = False,
) -> Wanted:
    scope = {"model_name": model_name, "tenant_id": tenant_id, "worker_id": worker_id}
    hashes = sequence_hashes or None
    page = _query(**scope, limit=limit, after=after, sequence_hashes=hashes)
    return Wanted("/reservations" + page)


def _want_decisions(
    model_name: Text = None,
    tenant_id: Text = None,
    worker_id: Number = None,
    limit: Number = None,
) -> Wanted:
    scope = {"model_name": model_name, "tenant_id": tenant_id, "worker_id": worker_id}
    return Wanted("/decisions" + _query(**scope, limit=limit))


def _want_observation(
    window_s: Number = None, model_name: Text = None, tenant_id: Text = None
) -> Wanted:
    query = _query(window_s=window_s, model_name=model_name, tenant_id=tenant_id)
    return Wanted("/planner/observation" + query)


def _want_doctor(
    worker_id: Number = None,
    after: Number = None,
    limit: Number = None,
    probe: bool | None = None,
) -> Wanted:
    return Wanted("/doctor" + _query(worker_id=worker_id, after=after, limit=limit, probe=probe))


def _want_migrations(after: Number = None, timeout_ms: Number = None) -> Wanted:
    return Wanted("/migrations" + _query(after=after, timeout_ms=timeout_ms))


def _want_drain(
    worker_id: int, *, migrate: bool = True, by: health.DrainCaller = "operator"
) -> Wanted:
    body = health.DrainRequest(migrate=migrate, by=by)
    return Wanted(_filled("/workers/{worker_id}/drain", worker_id), sparse(body))


def _want_undrain(worker_id: int, *, by: health.DrainCaller = "operator") -> Wanted:
    body = health.UndrainRequest(by=by)
    return Wanted(_filled("/workers/{worker_id}/undrain", worker_id), sparse(body))


# --- the table

_NEVER, _BY_NAME = Repeats.NEVER, Repeats.BY_NAME
_Json = dict[str, Any]

SELECT = _bodied("POST /select", selection.SelectRequest, selection.Selection)
SELECT_AND_RESERVE = _bodied(
    "POST /select_and_reserve", selection.SelectAndReserveRequest, selection.Selection, _BY_NAME
)
EXPLAIN = _bodied("POST /explain", selection.SelectRequest, decisions.DecisionView)
DECISIONS = Route("GET /decisions", decisions.DecisionList, _want_decisions)
DECISION = _named("GET /decisions/{decision_id}", decisions.DecisionView)

RESERVE = _bodied(
    "POST /reservations", reservations.ReservationRequest, reservations.Reservation, _BY_NAME
)
RESERVATIONS = Route("GET /reservations", reservations.ReservationPage, _want_reservations)
RESERVATION = _named("GET /reservations/{reservation_id}", reservations.ReservationRow)
PREFILL_COMPLETE = _named("POST /reservations/{reservation_id}/prefill_complete", migrations.Done)
OUTPUT_BLOCK = Route(
    "POST /reservations/{reservation_id}/output_block", migrations.Done, _want_output_block, _NEVER
)
RENEW = _named("POST /reservations/{reservation_id}/renew", migrations.Done)
FREE = Route("DELETE /reservations/{reservation_id}", migrations.Done, _want_free)
MIGRATED = Route(
    "POST /reservations/{reservation_id}/migrated", migrations.Confirmation, _want_migrated, _NEVER
)
MIGRATIONS = Route("GET /migrations", migrations.MigrationPage, _want_migrations)

WORKERS = _scoped("GET /workers", list[workers.WorkerRecord])
WORKER = _numbered("GET /workers/{worker_id}", workers.WorkerRecord)
REGISTER = _bodied("POST /workers", workers.WorkerRegistration, workers.WorkerRecord)
PATCH = _about_worker("PATCH /workers/{worker_id}", workers.WorkerPatch, workers.WorkerRecord)
DELETE_WORKER = _numbered("DELETE /workers/{worker_id}", workers.WorkerRecord)

STATE = _plain("GET /state", state.KeptState)
DISCOVERY = _plain("GET /discovery", discovery.DiscoveryView)
FLEET_HEALTH = _scoped("GET /health/fleet", health.FleetHealth)
OUTCOME = _about_worker(
    "POST /workers/{worker_id}/outcome", health.OutcomeRequest, type(None), _NEVER
)
DRAIN = Route("POST /workers/{worker_id}/drain", health.WorkerDraining, _want_drain)
UNDRAIN = Route("POST /workers/{worker_id}/undrain", health.WorkerDraining, _want_undrain)
CHECK = _numbered("POST /workers/{worker_id}/check", health.WorkerHealth)
LEARN = _bodied("POST /canary/learn", health.LearnRequest, Status)

SET_BUSY_THRESHOLD = _bodied(
    "POST /busy_threshold", admission.BusyThresholdChange, admission.BusyThresholdView
)
BUSY_THRESHOLDS = _plain("GET /busy_threshold", admission.BusyThresholdList)
SHED = _bodied("POST /admission/shed", admission.ShedRequest, admission.AdmissionState)
ADMISSION = _plain("GET /admission", admission.AdmissionState)

POLICY = _plain("GET /policy", policies.PolicyState)
SET_POLICY = _bodied("PUT /policy", policies.PolicyChange, policies.PolicyState)
REMOVE_POLICY = _scoped("DELETE /policy", policies.PolicyState)
SHADOW = _plain("GET /shadow", comparing.ShadowState)
BEGIN_EXPERIMENT = _bodied(
    "POST /experiments", comparing.ExperimentRequest, comparing.ExperimentView, _NEVER
)
EXPERIMENTS = _plain("GET /experiments", comparing.ExperimentList)
EXPERIMENT = _named("GET /experiments/{experiment_id}", comparing.ExperimentView)
END_EXPERIMENT = _named("DELETE /experiments/{experiment_id}", comparing.ExperimentView)

REGISTER_PEER = _bodied("POST /replica_sync/register_peer", replicas.ReplicaPeerRequest, Status)
DEREGISTER_PEER = _bodied("POST /replica_sync/deregister_peer", replicas.ReplicaPeerRequest, Status)
PEERS = _plain("GET /replica_sync/peers", list[str])
REPLICA_STATUS = _plain("GET /replica_sync/status", replicas.ReplicaStatus)

LOADS = _scoped("GET /loads", list[inspection.PartitionLoads])
POTENTIAL_LOADS = _bodied("POST /potential_loads", prompts.PromptQuery, list[inspection.RankLoad])
OVERLAP_SCORES = _bodied("POST /overlap_scores", prompts.PromptQuery, inspection.OverlapScores)
OBSERVATION = Route("GET /planner/observation", observation.Observation, _want_observation)

DOCTOR = Route("GET /doctor", doctor.DoctorReport, _want_doctor)
CONFIG = _plain("GET /config", _Json)
SET_LOG_LEVEL = _bodied("PUT /log_level", inspection.LogLevelChange, inspection.LogLevelView)
HEALTH = _plain("GET /health", Status)
READY = _plain("GET /ready", workers.Ready, good=(503,))
METRICS = _plain("GET /metrics", str)
OPENAPI = _plain("GET /openapi.json", _Json)
DOCS = _plain("GET /docs", str)
DOCS_FILE = _named("GET /docs/{file}", str)

STREAMED: Mapping[str, str] = {"GET /dump": "dump", "GET /migrations/stream": "moves"}
"""Routes whose answers are read piece by piece, with the methods that do that."""
