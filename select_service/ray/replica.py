"""Registration of a Ray Serve replica as a worker."""

import hashlib
from collections.abc import Sequence
from typing import Any

from ray import serve

from select_service.ray.catalog_reconciler import Follower, Seen
from select_service.ray.deployment import NAME, make_lookup
from select_service.ray.worker_sources import make_registration

INTERVAL_S = 5.0
"""Time between two checks that all selectors have the replica, in seconds."""


def register_replica(
    *,
    selectors: str | Sequence[str] = NAME,
    api_key_file: str | None = None,
    ca_file: str | None = None,
    **facts: Any,
) -> Follower:
    """Register the calling replica as a worker of all selectors for its whole life.

    selectors: name of the deployment of selectors, or their URLs.
    api_key_file, ca_file: see `deploy`; the key needs the role operator.
    facts: fields of a registration, such as `model_name`, `block_size`, `kv_events_endpoint`,
        `replay_endpoint`, `max_num_batched_tokens` and `total_kv_blocks`. The worker id and the
        endpoint are derived from the replica.
    Returns the follower. Close it in `__del__` of the deployment, which Serve calls after the last
    request: the worker is then removed from the selectors. Routers that see the replica leave
    remove the worker as well, and a removed worker is not registered again.
    Raises ValueError for a wrong field or file, and RayServeException outside of a replica.
    """
    replica_id = serve.get_replica_context().replica_id
    own = {
        "worker_id": worker_id_of(replica_id.unique_id),
        "endpoint": f"ray://{replica_id.to_full_id_str()}",
    }
    worker = make_registration({**own, **facts})
    return Follower(
        lambda: Seen([worker], True),
        make_lookup(selectors),
        interval_s=INTERVAL_S,
        # A router that saw the replica leave removed the worker for good.
        revives=False,
        api_key_file=api_key_file,
        ca_file=ca_file,
    )


def worker_id_of(unique_id: str) -> int:
    """Return the worker id of a replica: the number that Ray's own router uses."""
    return int.from_bytes(hashlib.blake2b(unique_id.encode(), digest_size=8).digest(), "big")
