"""Ray runs selectors, and Ray's programs find and use them.

`fleet` starts selectors as actors and finds them by name (`members`): `selector_actor` is one of
them, with its service in a `process` of its own.  Only this room imports ray, and of the rest of
the service it knows the client and the bodies.
"""

from select_service.ray.fleet import deploy, find, remove

__all__ = ["deploy", "find", "remove"]
