"""Integration with Ray: selectors as actors, and their use by Ray programs and Ray Serve.

`deployment` starts selectors as named actors and finds the actors by name (`deployment_members`).
Each actor is a `selector_actor` with its service in a `child_process`. `router` chooses replicas of
Ray Serve. The replicas register themselves (`replica`) and report the progress of requests
(`progress_report`). `catalog_reconciler` keeps the catalog of all selectors (`selector_client`)
equal to the actors and replicas in Ray (`worker_sources`). `selection_service` lets Ray's own
KV-aware router use selectors. `credentials` has the keys and CAs of all calls.

No other package imports ray. This package imports only the client, the schemas, and the reading of
keys and CAs from the rest of the service.
"""

try:
    from select_service.ray.catalog_reconciler import Follower, Seen
    from select_service.ray.deployment import deploy, find, remove
    from select_service.ray.progress_report import Report
    from select_service.ray.replica import register_replica
    from select_service.ray.worker_sources import NamedActors, ServeReplicas
except ModuleNotFoundError as error:
    from select_service.base.extras import installation_advice

    raise ModuleNotFoundError(installation_advice(error, "ray"), name=error.name) from None

__all__ = [
    "Follower",
    "NamedActors",
    "Report",
    "Seen",
    "ServeReplicas",
    "deploy",
    "find",
    "register_replica",
    "remove",
]
