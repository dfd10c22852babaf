"""The replica plane: its peers, and how far they and this replica agree."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.api.service import ReplicaPlane, Service
from select_service.bodies.common import Status
from select_service.bodies.replicas import ReplicaPeerRequest, ReplicaStatus
from select_service.errors import Conflict, NotFound
from select_service.http.codec import body_as, json_response

_PEER = msgspec.json.Decoder(ReplicaPeerRequest)
_OK = Status()


async def register(service: Service, request: Request) -> Response:
    """201 for a new peer, 200 for a known one."""
    body = await body_as(request, _PEER)
    is_new = _plane(service).register(body.endpoint)
    return json_response(_OK, 201 if is_new else 200)


async def deregister(service: Service, request: Request) -> Response:
    body = await body_as(request, _PEER)
    if not _plane(service).deregister(body.endpoint):
        raise NotFound("peer not found")
    return json_response(_OK)


async def listing(service: Service, request: Request) -> Response:
    return json_response([] if service.replicas is None else service.replicas.peers())


async def status(service: Service, request: Request) -> Response:
    return json_response(status_of(service))


def status_of(service: Service) -> ReplicaStatus:
    """Also without a replica plane there is a status."""
    if service.replicas is not None:
        return service.replicas.status()
    return ReplicaStatus(
        enabled=False,
        router_id=service.selector.router_id,
        repair=False,
        frames_out=0,
        digests_out=0,
        frames_dropped_out=0,
        frames_queued=0,
        subscribers=0,
        peers=[],
    )


def _plane(service: Service) -> ReplicaPlane:
    """Raises Conflict."""
    if service.replicas is None:
        raise Conflict("replica sync is disabled")
    return service.replicas
