"""Endpoints of replica synchronization: peers, and their agreement with this replica."""

from starlette.requests import Request
from starlette.responses import Response

from select_service.api.service_context import ServiceContext
from select_service.auth.roles import OPERATOR, REPLICA, service_wide
from select_service.base.errors import Conflict, DestinationRefused, NotFound
from select_service.http.body_codec import json_response
from select_service.http.endpoint import (
    BODY_ERRORS,
    BodySpec,
    EndpointGroup,
    ResponseSpec,
    RouteSpec,
)
from select_service.schemas.common import Status
from select_service.schemas.replicas import NewReplicaPeerRequest, ReplicaPeerRequest, ReplicaStatus

_OK = Status()
_EXAMPLE_OK = {"status": "ok"}
_NEW_PEER = BodySpec(
    NewReplicaPeerRequest,
    {
        "peer": {"endpoint": "tcp://selector-b:9092"},
        "by name": {"endpoint": "tcp://10.0.0.7:9092", "replica": "selector-b"},
    },
)
_PEER = BodySpec(ReplicaPeerRequest, {"peer": {"endpoint": "tcp://selector-b:9092"}})
_PEER_STATUS = {
    "endpoint": "tcp://selector-b:9092",
    "replica": "selector-b",
    "self": False,
    "connected": True,
    "router_id": 7171717171,
    "frames_in": 2517,
    "frames_out": 3139,
    "applied": 2400,
    "digests": 116,
    "progress": 480,
    "sessions": 90,
    "session_repairs": 1,
    "sessions_repaired": 12,
    "lost": 0,
    "dropped": {"known": 1},
    "seconds_since_last_frame": 0.31,
    "divergence_reservations": 0,
    "divergence_prefill_tokens": 0,
    "divergence": [],
    "repairs": {
        "runs": 1,
        "failed": 0,
        "added": 12,
        "dropped": 0,
        "changed": 0,
        "repeated": 0,
        "refused": 0,
    },
    "last_error": None,
    "seconds_since_last_error": None,
}
_STATUS = {
    "enabled": True,
    "secured": True,
    "keys_error": None,
    "router_id": 4242424242,
    "repair": True,
    "frames_out": 3021,
    "digests_out": 120,
    "progress_out": 512,
    "sessions_out": 96,
    "frames_dropped_out": 0,
    "frames_queued": 0,
    "subscribers": 1,
    "refused": 0,
    "peers": [_PEER_STATUS],
}

REPLICAS = EndpointGroup(
    "replicas", "Synchronize active load with other replicas of the same catalog."
)


@REPLICAS.declare_route(
    RouteSpec(
        "POST",
        "/replica_sync/register_peer",
        "register_peer",
        "Register a replica as a peer",
        {
            200: ResponseSpec("The peer was already registered.", Status, _EXAMPLE_OK),
            201: ResponseSpec("The peer is registered.", Status, _EXAMPLE_OK),
        },
        may_call=service_wide(OPERATOR),
        detail="Takes effect at once; the peer need not be running. Lost on restart. If replicas "
        "have keys, the keys file must contain the replica expected at the endpoint.",
        body=_NEW_PEER,
        refusals=(*BODY_ERRORS, DestinationRefused, Conflict),
    )
)
async def register_peer(
    service: ServiceContext, request: Request, body: NewReplicaPeerRequest
) -> Response:
    """Register a peer: 201 if new, 200 if already registered."""
    is_new = service.features.replicas.register_peer(body.endpoint, body.replica)
    return json_response(_OK, 201 if is_new else 200)


@REPLICAS.declare_route(
    RouteSpec(
        "POST",
        "/replica_sync/deregister_peer",
        "deregister_peer",
        "Deregister a peer",
        {200: ResponseSpec("The peer is deregistered.", Status, _EXAMPLE_OK)},
        may_call=service_wide(OPERATOR),
        detail="Takes effect at once. The peer's reservations stay until freed or expired.",
        body=_PEER,
        refusals=(*BODY_ERRORS, NotFound, Conflict),
    )
)
async def deregister_peer(
    service: ServiceContext, request: Request, body: ReplicaPeerRequest
) -> Response:
    if not service.features.replicas.deregister_peer(body.endpoint):
        raise NotFound("peer not found: GET /replica_sync/peers lists the registered endpoints")
    return json_response(_OK)


@REPLICAS.declare_route(
    RouteSpec(
        "GET",
        "/replica_sync/peers",
        "list_peers",
        "List the peers",
        {
            200: ResponseSpec(
                "Sorted endpoints; empty when replica synchronization is disabled.",
                list[str],
                ["tcp://selector-b:9092"],
            )
        },
        may_call=service_wide(OPERATOR, REPLICA),
    )
)
async def list_peers(service: ServiceContext, request: Request) -> Response:
    return json_response(service.features.replicas.peer_endpoints())


@REPLICAS.declare_route(
    RouteSpec(
        "GET",
        "/replica_sync/status",
        "replica_status",
        "Show the messages from each peer and the differences to this replica",
        {200: ResponseSpec("Peers by endpoint.", ReplicaStatus, _STATUS)},
        may_call=service_wide(OPERATOR, REPLICA),
        detail="Cheap enough for a scrape every few seconds.",
    )
)
async def show_replica_status(service: ServiceContext, request: Request) -> Response:
    return json_response(service.features.replicas.replica_status())
