"""The replica plane: its peers, and how far they and this replica agree."""

from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import OPERATOR, REPLICA, whole_service
from select_service.api.service import ReplicaPlane, Service
from select_service.bodies.common import Status
from select_service.bodies.replicas import NewReplicaPeerRequest, ReplicaPeerRequest, ReplicaStatus
from select_service.errors import Conflict, DestinationRefused, NotFound
from select_service.http.codec import json_response
from select_service.http.endpoint import WITH_BODY, Answer, Body, Noun, Route

_OK = Status()
_SAID_OK = {"status": "ok"}
_NEW_PEER = Body(
    NewReplicaPeerRequest,
    {
        "peer": {"endpoint": "tcp://selector-b:9092"},
        "by name": {"endpoint": "tcp://10.0.0.7:9092", "replica": "selector-b"},
    },
)
_PEER = Body(ReplicaPeerRequest, {"peer": {"endpoint": "tcp://selector-b:9092"}})
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
    "frames_dropped_out": 0,
    "frames_queued": 0,
    "subscribers": 1,
    "refused": 0,
    "peers": [_PEER_STATUS],
}

REPLICAS = Noun("replicas", "Share active load with other selectors of the same catalog.")


@REPLICAS.declare(
    Route(
        "POST",
        "/replica_sync/register_peer",
        "register_peer",
        "Listen to another replica",
        {
            200: Answer("It was a peer already.", Status, _SAID_OK),
            201: Answer("Done.", Status, _SAID_OK),
        },
        may_call=whole_service(OPERATOR),
        detail="Takes effect at once; the peer may be absent. Not kept over a restart. Where "
        "replicas have keys, the one that has to answer there must be in the file of keys.",
        body=_NEW_PEER,
        refusals=(*WITH_BODY, DestinationRefused, Conflict),
    )
)
async def register(service: Service, request: Request, body: NewReplicaPeerRequest) -> Response:
    """201 for a new peer, 200 for a known one."""
    is_new = _plane(service).register(body.endpoint, body.replica)
    return json_response(_OK, 201 if is_new else 200)


@REPLICAS.declare(
    Route(
        "POST",
        "/replica_sync/deregister_peer",
        "deregister_peer",
        "Stop listening to another replica",
        {200: Answer("Done.", Status, _SAID_OK)},
        may_call=whole_service(OPERATOR),
        detail="Takes effect at once. What the peer has reserved stays until it is freed or "
        "expires.",
        body=_PEER,
        refusals=(*WITH_BODY, NotFound, Conflict),
    )
)
async def deregister(service: Service, request: Request, body: ReplicaPeerRequest) -> Response:
    if not _plane(service).deregister(body.endpoint):
        raise NotFound("peer not found")
    return json_response(_OK)


@REPLICAS.declare(
    Route(
        "GET",
        "/replica_sync/peers",
        "list_peers",
        "List the peers",
        {
            200: Answer(
                "Endpoints, sorted; none when replica sync is disabled.",
                list[str],
                ["tcp://selector-b:9092"],
            )
        },
        may_call=whole_service(OPERATOR, REPLICA),
    )
)
async def listing(service: Service, request: Request) -> Response:
    return json_response([] if service.replicas is None else service.replicas.peers())


@REPLICAS.declare(
    Route(
        "GET",
        "/replica_sync/status",
        "replica_status",
        "What came from each peer, and how far it and this replica agree",
        {200: Answer("Peers by endpoint.", ReplicaStatus, _STATUS)},
        may_call=whole_service(OPERATOR, REPLICA),
        detail="Cheap enough for a scrape every few seconds.",
    )
)
async def status(service: Service, request: Request) -> Response:
    return json_response(status_of(service))


def status_of(service: Service) -> ReplicaStatus:
    """Also without a replica plane there is a status."""
    if service.replicas is not None:
        return service.replicas.status()
    return ReplicaStatus(
        enabled=False,
        secured=False,
        keys_error=None,
        router_id=service.selector.router_id,
        repair=False,
        frames_out=0,
        digests_out=0,
        progress_out=0,
        frames_dropped_out=0,
        frames_queued=0,
        subscribers=0,
        refused=0,
        peers=[],
    )


def _plane(service: Service) -> ReplicaPlane:
    """Raises Conflict."""
    if service.replicas is None:
        raise Conflict("replica sync is disabled; --replica-sync-port enables it")
    return service.replicas
