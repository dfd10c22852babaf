"""What a replica of Ray Serve does to be a worker: it registers itself, and leaves."""

import hashlib
from collections.abc import Sequence
from typing import Any

from ray import serve

from select_service.ray.fleet import NAME, found_by
from select_service.ray.following import Follower, Seen
from select_service.ray.sources import described

INTERVAL_S = 5.0
"""How often a replica looks whether all selectors know it."""


def register_replica(
    *,
    selectors: str | Sequence[str] = NAME,
    api_key_file: str | None = None,
    ca_file: str | None = None,
    **facts: Any,
) -> Follower:
    """Make the replica that calls this a worker of all selectors, as long as it lives.

    selectors: the name with which they were deployed, or their URLs.
    api_key_file, ca_file: see `deploy`; the key needs the role operator.
    facts: fields of a registration, as `model_name`, `block_size`, `kv_events_endpoint`,
        `replay_endpoint`, `max_num_batched_tokens` and `total_kv_blocks`; worker id and endpoint
        are those of the replica.
    Close the answer in the `__del__` of the deployment, which Serve calls when a replica has run
    what it had: that takes the worker out of the selectors.  So do the routers that see the
    replica go, and what was taken out is not registered again.
    Raises ValueError for a wrong field or file, and RayServeException outside of a replica.
    """
    replica_id = serve.get_replica_context().replica_id
    own = {
        "worker_id": worker_id_of(replica_id.unique_id),
        "endpoint": f"ray://{replica_id.to_full_id_str()}",
    }
    worker = described({**own, **facts})
    return Follower(
        lambda: Seen([worker], True),
        found_by(selectors),
        interval_s=INTERVAL_S,
        revives=False,
        api_key_file=api_key_file,
        ca_file=ca_file,
    )


def worker_id_of(unique_id: str) -> int:
    """The worker that a replica of this unique id is: the same number that Ray's own router has."""
    return int.from_bytes(hashlib.blake2b(unique_id.encode(), digest_size=8).digest(), "big")
