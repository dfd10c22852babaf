"""Keys of this replica, as loaded at the start."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from select_service.auth.replica_keys_schema import ReplicaKeys
from select_service.core.replication.router_ids import key_mark_of

if TYPE_CHECKING:
    from indexer.sockets.curve_keypairs import CurveKeyPair


class ReplicaKeypair(NamedTuple):
    """Keys of a replica.

    own_pair: our key pair;  replica_keys: keys of all replicas, as read from `path`
    """

    own_pair: "CurveKeyPair"
    path: Path
    replica_keys: ReplicaKeys

    @property
    def router_mark(self) -> int:
        """Mark of our router ids."""
        return key_mark_of(self.own_pair.public.decode())
