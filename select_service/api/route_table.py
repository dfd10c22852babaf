"""Every route as data: what it takes, what it answers, how it refuses.

The application attaches a handler to each `operation_id`; the OpenAPI document and the page at
/docs are made from the same list, so neither can name a route that does not exist or miss one.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from select_service.api.documents import ConfigView, PartitionDumpView
from select_service.bodies import admission as schema_admission
from select_service.bodies import replicas as schema_replicas
from select_service.bodies.common import U64, Status
from select_service.bodies.inspection import OverlapScores, PartitionLoads, RankLoad
from select_service.bodies.prompts import PromptQuery
from select_service.bodies.reservations import (
    OutputBlockRequest,
    Reservation,
    ReservationPage,
    ReservationRequest,
)
from select_service.bodies.selection import SelectAndReserveRequest, Selection, SelectRequest
from select_service.bodies.workers import Ready, WorkerPatch, WorkerRecord, WorkerRegistration
from select_service.errors import (
    BadRequest,
    BodyTooLarge,
    CapacityExceeded,
    CapacityShed,
    Conflict,
    InvalidBody,
    MalformedJson,
    NoEligibleRank,
    NotFound,
    NoWorkers,
    Overloaded,
    QueueFull,
    QueueTimeout,
    ShuttingDown,
    UnsupportedMediaType,
)
from select_service.http.endpoint import (
    Answer,
    HeaderParameter,
    QueryParameter,
    RequestTimeout,
    Route,
)

METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
HTML = "text/html; charset=utf-8"

PAGE_ROWS = 100
PAGE_ROWS_MAX = 1000
"""Rows of one page of GET /reservations: unless asked otherwise, and at most."""


TAGS: Mapping[str, str] = {
    "selection": "Choose the rank that should run a prompt.",
    "reservations": "Load that is held for one request, from admission to its end.",
    "admission": "Who may pass when the fleet is full.",
    "workers": "The catalog of engines that may be chosen.",
    "replicas": "Share active load with other selectors of the same catalog.",
    "inspection": "What the service knows: load, overlap, index, configuration.",
    "service": "Probes, metrics and this document.",
}

PATH_PARAMETERS: Mapping[str, tuple[Any, str]] = {
    "worker_id": (U64, "Id of the worker, an unsigned 64-bit integer."),
    "reservation_id": (
        Annotated[str, Meta(min_length=1)],
        "Id of the reservation, percent-encoded.",
    ),
}

_MODEL_NAME = QueryParameter("model_name", str, "Only this model.")
_TENANT_ID = QueryParameter("tenant_id", str, "Only this tenant.")
_ROUTING_GROUP = QueryParameter(
    "routing_group", str, "Another name of `tenant_id`; when both are given they must be equal."
)
_SCOPE = (_MODEL_NAME, _TENANT_ID, _ROUTING_GROUP)
_PAGE = (
    QueryParameter("worker_id", U64, "Only reservations of this worker."),
    QueryParameter(
        "limit", Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)], "Rows of a page at most.", PAGE_ROWS
    ),
    QueryParameter(
        "after",
        Annotated[str, Meta(pattern="^[0-9]{1,18}$")],
        "The `next` of the page before.",
    ),
    QueryParameter(
        "sequence_hashes",
        bool,
        "Show the identities of the prompt blocks; makes pages shorter.",
        False,
    ),
)

_BODY = (
    MalformedJson,
    BadRequest,
    RequestTimeout,
    BodyTooLarge,
    UnsupportedMediaType,
    InvalidBody,
    CapacityExceeded,
    ShuttingDown,
)
"""What any request with a body may be answered before the service looks at it."""

_ADMISSION = (Overloaded, CapacityShed, QueueFull, QueueTimeout)
"""Refusals of a fleet that is full; all of them name a time in `Retry-After`."""
_POLICY_CLASS = (
    HeaderParameter(
        "x-dynamo-meta-policy-class",
        "Policy family, or the name of an explicit class, in whose queue the request waits.",
    ),
)

_PROMPT_DETAIL = (
    "The prompt is given in one of three forms, looked at in this order: `mm_routing_info` with a "
    "`routing_token_ids` that is not empty; `token_ids`; or the three fields `block_hashes`, "
    "`sequence_hashes` (of equal length) and `isl_tokens` (greater than 0). Hashes may be signed "
    "or unsigned 64-bit integers."
)
_EVERY_SECOND = "Cheap enough for a scrape every few seconds."

_SELECTION = Answer("The chosen rank.", Selection)
_RECORD = Answer("The worker as it stands now.", WorkerRecord)
_OK = Answer("Done.", Status)

_SELECTION_ROUTES = (
    Route(
        "POST",
        "/select_and_reserve",
        "select_and_reserve",
        "selection",
        "Choose a rank and book the load on it",
        {200: _SELECTION},
        "Choosing and booking are one step: of two requests that arrive together, the second sees "
        "the load of the first. A refused request books nothing. " + _PROMPT_DETAIL,
        SelectAndReserveRequest,
        refusals=(*_BODY, Conflict, NoWorkers, NoEligibleRank, *_ADMISSION),
        headers=_POLICY_CLASS,
    ),
    Route(
        "POST",
        "/select",
        "select",
        "selection",
        "Choose a rank without booking",
        {200: _SELECTION},
        "Callers that ask at the same moment all see the same load and meet on one rank; prefer "
        "/select_and_reserve. " + _PROMPT_DETAIL,
        SelectRequest,
        refusals=(*_BODY, NoWorkers, NoEligibleRank, *_ADMISSION),
        headers=_POLICY_CLASS,
    ),
)

_RESERVATION_ROUTES = (
    Route(
        "POST",
        "/reservations",
        "create_reservation",
        "reservations",
        "Book load on a rank that the caller chose",
        {201: Answer("The reservation.", Reservation)},
        "The prompt is given as tokens, or as `sequence_hashes` and `isl_tokens`; `block_hashes` "
        "are not used. Without `effective_prefill_tokens` the whole prompt counts as prefill load.",
        ReservationRequest,
        refusals=(*_BODY, NotFound, Conflict, NoWorkers),
    ),
    Route(
        "GET",
        "/reservations",
        "list_reservations",
        "reservations",
        "List live reservations, oldest first",
        {200: Answer("One page.", ReservationPage)},
        "Ask again with `after` set to `next` until it is null. A page of a filtered list may be "
        "shorter than `limit`.",
        query=_SCOPE + _PAGE,
        refusals=(BadRequest,),
    ),
    Route(
        "POST",
        "/reservations/{reservation_id}/prefill_complete",
        "prefill_complete",
        "reservations",
        "Give back the prefill load",
        {200: _OK},
        "Call it when the first token arrives. Repeating it changes nothing but renews the lease.",
        refusals=(BadRequest, NotFound),
    ),
    Route(
        "POST",
        "/reservations/{reservation_id}/output_block",
        "output_block",
        "reservations",
        "Count one more block of output",
        {200: _OK},
        "With `decay_fraction` (0.0 to 1.0) the blocks that only this reservation holds count so "
        "much each from now on: 1 is a full block. The body may be `{}` but must be there.",
        OutputBlockRequest,
        refusals=(*_BODY, NotFound),
    ),
    Route(
        "POST",
        "/reservations/{reservation_id}/renew",
        "renew_reservation",
        "reservations",
        "Start the lease anew",
        {200: _OK},
        "A reservation that no call touches for the time to live expires, and its load with it.",
        refusals=(BadRequest, NotFound),
    ),
    Route(
        "DELETE",
        "/reservations/{reservation_id}",
        "free_reservation",
        "reservations",
        "Free the load of a request that has ended",
        {200: _OK},
        refusals=(BadRequest, NotFound),
    ),
)

_THRESHOLDS = Answer("The thresholds that count now.", schema_admission.BusyThresholdView)
_ADMISSION_STATE = Answer("The state after the call.", schema_admission.AdmissionState)

_ADMISSION_ROUTES = (
    Route(
        "POST",
        "/busy_threshold",
        "set_busy_threshold",
        "admission",
        "Set the busy thresholds of a model",
        {200: _THRESHOLDS},
        "A rank above a threshold gets no more requests; when all candidates are, a request is "
        "refused with 503. A field that is left out keeps its value, null clears it. Not kept over "
        "a restart.",
        schema_admission.BusyThresholdChange,
        refusals=(*_BODY, NotFound),
    ),
    Route(
        "GET",
        "/busy_threshold",
        "busy_thresholds",
        "admission",
        "Busy thresholds of every model",
        {200: Answer("Models by name.", schema_admission.BusyThresholdList)},
    ),
    Route(
        "POST",
        "/admission/shed",
        "shed",
        "admission",
        "Shed a priority tier and all below it",
        {200: _ADMISSION_STATE},
        "Requests of these tiers are refused with 503, waiting ones too, until the call is made "
        "with another tier or null.",
        schema_admission.ShedRequest,
        refusals=_BODY,
    ),
    Route(
        "GET",
        "/admission",
        "admission_state",
        "admission",
        "What is shed, what waits, and what became of all requests",
        {200: Answer("The state now.", schema_admission.AdmissionState)},
        _EVERY_SECOND,
    ),
)

_WORKER_ROUTES = (
    Route(
        "POST",
        "/workers",
        "register_worker",
        "workers",
        "Register a worker",
        {201: _RECORD},
        "Replaces the whole record of `worker_id`. What the worker still lacks is not an error: "
        "its `lifecycle` is `incomplete` and `not_schedulable_reasons` says why.",
        WorkerRegistration,
        refusals=_BODY,
    ),
    Route(
        "GET",
        "/workers",
        "list_workers",
        "workers",
        "List the workers",
        {
            200: Answer(
                "Workers by model, tenant and id, with the state of their KV event listeners.",
                list[WorkerRecord],
            )
        },
        query=_SCOPE,
        refusals=(BadRequest,),
    ),
    Route(
        "PATCH",
        "/workers/{worker_id}",
        "patch_worker",
        "workers",
        "Change a worker",
        {200: _RECORD},
        "A field that is absent or null keeps its value. Ranks that remain keep their "
        "reservations, and their index unless their event endpoint changes.",
        WorkerPatch,
        refusals=(*_BODY, NotFound),
    ),
    Route(
        "DELETE",
        "/workers/{worker_id}",
        "delete_worker",
        "workers",
        "Remove a worker",
        {200: _RECORD},
        "Its reservations end and its blocks are forgotten. May be repeated.",
        refusals=(BadRequest, NotFound),
    ),
)

_INSPECTION_ROUTES = (
    Route(
        "GET",
        "/loads",
        "loads",
        "inspection",
        "Load of every rank now",
        {200: Answer("Partitions by model and tenant.", list[PartitionLoads])},
        query=_SCOPE,
        refusals=(BadRequest,),
    ),
    Route(
        "POST",
        "/potential_loads",
        "potential_loads",
        "inspection",
        "What the load of every rank would be with this prompt on it",
        {200: Answer("Ranks by worker and rank.", list[RankLoad])},
        _PROMPT_DETAIL,
        PromptQuery,
        refusals=(*_BODY, NoWorkers),
    ),
    Route(
        "POST",
        "/overlap_scores",
        "overlap_scores",
        "inspection",
        "How many leading blocks of this prompt every rank holds",
        {200: Answer("Ranks by worker and rank.", OverlapScores)},
        _PROMPT_DETAIL,
        PromptQuery,
        refusals=(*_BODY, NoWorkers),
    ),
    Route(
        "GET",
        "/dump",
        "dump",
        "inspection",
        "The index of every partition",
        {
            200: Answer(
                "`model:tenant` to the blocks held.",
                dict[str, PartitionDumpView],
                also="application/msgpack",
            )
        },
        "As a stream of KV events that would rebuild it. Large: one entry for every block held. "
        "With `Accept: application/msgpack` the compact form of docs/recovery.md.",
        refusals=(CapacityExceeded,),
    ),
    Route(
        "GET",
        "/config",
        "config",
        "inspection",
        "The effective configuration",
        {200: Answer("Every setting with its value and origin.", ConfigView)},
    ),
)

_REPLICA_ROUTES = (
    Route(
        "POST",
        "/replica_sync/register_peer",
        "register_peer",
        "replicas",
        "Listen to another replica",
        {200: Answer("It was a peer already.", Status), 201: _OK},
        "Takes effect at once; the peer may be absent. Not kept over a restart.",
        schema_replicas.ReplicaPeerRequest,
        refusals=(*_BODY, Conflict),
    ),
    Route(
        "POST",
        "/replica_sync/deregister_peer",
        "deregister_peer",
        "replicas",
        "Stop listening to another replica",
        {200: _OK},
        "Takes effect at once. What the peer has reserved stays until it is freed or expires.",
        schema_replicas.ReplicaPeerRequest,
        refusals=(*_BODY, NotFound, Conflict),
    ),
    Route(
        "GET",
        "/replica_sync/peers",
        "list_peers",
        "replicas",
        "List the peers",
        {200: Answer("Endpoints, sorted; none when replica sync is disabled.", list[str])},
    ),
    Route(
        "GET",
        "/replica_sync/status",
        "replica_status",
        "replicas",
        "What came from each peer, and how far it and this replica agree",
        {200: Answer("Peers by endpoint.", schema_replicas.ReplicaStatus)},
        _EVERY_SECOND,
    ),
)

_SERVICE_ROUTES = (
    Route(
        "GET",
        "/health",
        "health",
        "service",
        "Is the process alive?",
        {200: Answer("It is.", Status)},
    ),
    Route(
        "GET",
        "/ready",
        "ready",
        "service",
        "Can a worker be chosen?",
        {
            200: Answer("At least one worker is schedulable.", Ready),
            503: Answer("None is; the records say why. Or recovery still runs.", Ready),
        },
    ),
    Route(
        "GET",
        "/metrics",
        "metrics",
        "service",
        "Metrics for Prometheus",
        {200: Answer("Prometheus text exposition.", None, METRICS_TEXT)},
        _EVERY_SECOND,
    ),
    Route(
        "GET",
        "/openapi.json",
        "openapi",
        "service",
        "This document",
        {200: Answer("OpenAPI 3.1.", dict[str, Any])},
    ),
    Route(
        "GET",
        "/docs",
        "docs",
        "service",
        "This document as a page",
        {200: Answer("HTML without outside resources.", None, HTML)},
    ),
)

ROUTES: tuple[Route, ...] = (
    _SELECTION_ROUTES
    + _RESERVATION_ROUTES
    + _ADMISSION_ROUTES
    + _WORKER_ROUTES
    + _REPLICA_ROUTES
    + _INSPECTION_ROUTES
    + _SERVICE_ROUTES
)
