"""Ray runs selectors, and Ray's programs find and use them: actors, Serve.

`fleet` starts selectors as actors and finds them by name (`members`): `selector_actor` is one of
them, with its service in a `process` of its own.  `router` chooses replicas of Serve, which
register themselves (`replica`) and say how requests go on (`reporting`).  `following` keeps the
catalog of all selectors (`one_selector`) in step with actors and replicas (`sources`).
`selection_service` lets Ray's own KV-aware router ask selectors.  `credentials` is what all of them
show to selectors.
Only this room imports ray; of the rest of the service it knows the client, the bodies, and how
commands present a key and read a CA.
"""

try:
    from select_service.ray.fleet import deploy, find, remove
    from select_service.ray.following import Follower, Seen
    from select_service.ray.replica import register_replica
    from select_service.ray.reporting import Report
    from select_service.ray.sources import NamedActors, ServeReplicas
except ModuleNotFoundError as error:
    from select_service.extras import advice_to_install

    raise ModuleNotFoundError(advice_to_install(error, "ray"), name=error.name) from None

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
