"""Schema and validation of the file of replicas and their public CURVE keys."""

from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from indexer.curve_keys import curve_key_error
from indexer.zmq_endpoints import endpoint_error
from select_service.auth.api_keys_schema import KeyName, check_unique
from select_service.base.shape_errors import convert_document
from select_service.core.replication.router_ids import has_mark, key_mark_of
from select_service.net.urls import service_url_error

REPLICAS_MAX = 256
CREATE_PAIR_ADVICE = (
    "create a pair with `select-service keys new-replica NAME --secret-file SECRET --file FILE`"
)


class ReplicaKey(NamedTuple):
    """Replica with its public key, in Z85.

    endpoint: publisher endpoint for other replicas;  url: HTTP address of its lists
    """

    name: str
    public_key: str
    endpoint: str | None = None
    url: str | None = None

    def owns_router_id(self, router_id: int) -> bool:
        """Return whether the router id belongs to this replica."""
        return has_mark(router_id, key_mark_of(self.public_key))


class ReplicaKeys:
    """Replicas allowed to connect to each other."""

    def __init__(self, keys: Iterable[ReplicaKey] = ()) -> None:
        self.by_name = {key.name: key for key in keys}
        self._by_endpoint = {key.endpoint: key for key in self.by_name.values() if key.endpoint}
        self.public_keys = frozenset(key.public_key for key in self.by_name.values())

    def find(self, endpoint: str, name: str | None) -> ReplicaKey | None:
        """Return the replica expected at an endpoint: by name, or else by endpoint."""
        return self._by_endpoint.get(endpoint) if name is None else self.by_name.get(name)


class _Replica(msgspec.Struct, forbid_unknown_fields=True):
    name: KeyName
    public_key: str
    endpoint: str | None = None
    url: str | None = None


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    replicas: Annotated[list[_Replica], Meta(max_length=REPLICAS_MAX)]


def parse_replica_keys(document: object) -> ReplicaKeys:
    """Return the replicas.

    Raises ValueError with one line naming the invalid replica and the fault.
    """
    if not document:
        raise ValueError(f"the file is empty: {CREATE_PAIR_ADVICE}")
    found = convert_document(document, _Document).replicas
    for each in found:
        fault = _find_fault(each)
        if fault is not None:
            raise ValueError(f"replica `{each.name}`: {fault}")
    check_unique("replicas", "the name", [each.name for each in found])
    check_unique("replicas", "the key", [each.public_key for each in found])
    check_unique("replicas", "the endpoint", [each.endpoint for each in found if each.endpoint])
    # Equal marks occur once in 4 billion pairs, or on purpose; router ids would be ambiguous then.
    check_unique(
        "replicas", "router ids that begin with", [f"{key_mark_of(k.public_key):x}" for k in found]
    )
    return ReplicaKeys(
        ReplicaKey(each.name, each.public_key, each.endpoint, each.url) for each in found
    )


def _find_fault(given: _Replica) -> str | None:
    """Return the fault of an entry, or None."""
    fault = curve_key_error(given.public_key)
    if fault is not None:
        return f"public_key: {fault}"
    if given.endpoint is not None and (fault := endpoint_error(given.endpoint)) is not None:
        return fault
    if given.url is not None and (fault := service_url_error(given.url)) is not None:
        return f"url: {fault}"
    return None
