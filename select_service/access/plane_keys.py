"""What a replica with keys was given at its start."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from select_service.access.replica_keys import ReplicaKeys
from select_service.core.replicas.router_ids import mark_of

if TYPE_CHECKING:
    from indexer.sockets.curve import CurvePair


class PlaneKeys(NamedTuple):
    """own: our pair; known: of all replicas, ours or not, as the file at `path` had them."""

    own: "CurvePair"
    path: Path
    known: ReplicaKeys

    @property
    def router_mark(self) -> int:
        """Of our router ids."""
        return mark_of(self.own.public.decode())
