"""Which replicas there are, by the public keys of their CURVE pairs; judged as a whole."""

from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from indexer.curve_keys import curve_key_error
from indexer.endpoints import endpoint_error
from select_service.access.keys_document import Name, refuse_repeated
from select_service.core.replicas.router_ids import has_mark, mark_of
from select_service.shape_errors import converted
from select_service.urls import service_url_error

REPLICAS_MAX = 256
MAKE_PAIR = (
    "make a pair with `select-service keys new-replica NAME --secret-file SECRET --file FILE`"
)


class ReplicaKey(NamedTuple):
    """One replica.  public_key: in Z85.

    endpoint: under which the others listen to it; url: where they fetch its lists
    """

    name: str
    public_key: str
    endpoint: str | None = None
    url: str | None = None

    def may_be(self, router_id: int) -> bool:
        """Is it a router id of this replica?"""
        return has_mark(router_id, mark_of(self.public_key))


class ReplicaKeys:
    """Those that may listen and be listened to."""

    def __init__(self, keys: Iterable[ReplicaKey] = ()) -> None:
        self.by_name = {key.name: key for key in keys}
        self._by_endpoint = {key.endpoint: key for key in self.by_name.values() if key.endpoint}
        self.public = frozenset(key.public_key for key in self.by_name.values())

    def find(self, endpoint: str, name: str | None) -> ReplicaKey | None:
        """Who is to answer at an endpoint: the replica of that name, else the one it belongs to."""
        return self._by_endpoint.get(endpoint) if name is None else self.by_name.get(name)


class _Replica(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    public_key: str
    endpoint: str | None = None
    url: str | None = None


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    replicas: Annotated[list[_Replica], Meta(max_length=REPLICAS_MAX)]


def replica_keys_of(document: object) -> ReplicaKeys:
    """Raises ValueError with one line that says which replica is wrong, and in what."""
    if not document:
        raise ValueError(f"it is empty: {MAKE_PAIR}")
    found = converted(document, _Document).replicas
    for each in found:
        fault = _fault(each)
        if fault is not None:
            raise ValueError(f"replica `{each.name}`: {fault}")
    refuse_repeated("replicas", "the name", [each.name for each in found])
    refuse_repeated("replicas", "the key", [each.public_key for each in found])
    refuse_repeated("replicas", "the endpoint", [each.endpoint for each in found if each.endpoint])
    # By chance once in 4 billion pairs, or made so: then neither could be told from the other.
    refuse_repeated(
        "replicas", "router ids that begin with", [f"{mark_of(k.public_key):x}" for k in found]
    )
    return ReplicaKeys(
        ReplicaKey(each.name, each.public_key, each.endpoint, each.url) for each in found
    )


def _fault(given: _Replica) -> str | None:
    fault = curve_key_error(given.public_key)
    if fault is not None:
        return f"public_key: {fault}"
    if given.endpoint is not None and (fault := endpoint_error(given.endpoint)) is not None:
        return fault
    if given.url is not None and (fault := service_url_error(given.url)) is not None:
        return f"url: {fault}"
    return None
