"""Objects with resource versions and generations, and the history of events."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.builders.fake_kubernetes.kinds import Kind
from tests.builders.fake_kubernetes.patches import PatchError, merged, patched

Object = dict[str, Any]


class Refused(Exception):
    """Refusal, answered with a `Status`."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    def body(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "reason": self.reason,
            "code": self.status,
            "message": self.message,
        }


class Event(NamedTuple):
    """Event of a watch."""

    version: int
    type: str
    kind: Kind
    object: Object


class Store:
    """Objects of the cluster.

    now: seconds of the simulation, for timestamps
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.version = 0
        self.live_history: list[Event] = []
        self.oldest = 0
        self.now = 0.0
        self.heard: Callable[[], None] = lambda: None

    def stamp(self) -> str:
        whole = int(self.now)
        return f"2026-01-01T{whole // 3600 % 24:02}:{whole // 60 % 60:02}:{whole % 60:02}Z"

    def list(self, kind: Kind, namespace: str | None) -> list[Object]:
        return [
            found
            for (plural, where, _), found in sorted(self.objects.items(), key=lambda kv: kv[0])
            if plural == kind.plural
            and namespace in (None, where)
            and found["apiVersion"] == kind.api_version
        ]

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        found = self.objects.get((kind.plural, namespace, name))
        # Objects are not converted: each exists in the version in which it was created.
        if found is None or found.get("apiVersion", kind.api_version) != kind.api_version:
            raise Refused(404, "NotFound", f'{kind.plural} "{name}" not found')
        return found

    def create(self, kind: Kind, namespace: str, given: Object) -> Object:
        name = given["metadata"]["name"]
        if (kind.plural, namespace, name) in self.objects:
            raise Refused(409, "AlreadyExists", f'{kind.plural} "{name}" already exists')
        made = copy.deepcopy(given) | {"apiVersion": kind.api_version, "kind": kind.kind}
        made["metadata"] |= {
            "namespace": namespace,
            "uid": f"uid-{self.version + 1}",
            "creationTimestamp": self.stamp(),
            "generation": 1,
        }
        return self._keep("ADDED", kind, made)

    def update(self, kind: Kind, namespace: str, name: str, given: Object) -> Object:
        """Replace an object except for the fields that a caller cannot change.

        A version in `given` must be the newest.
        """
        old = self.get(kind, namespace, name)
        wanted = given.get("metadata", {}).get("resourceVersion")
        if wanted and wanted != old["metadata"]["resourceVersion"]:
            message = f'{kind.plural} "{name}": the object has been modified'
            raise Refused(409, "Conflict", message)
        new = copy.deepcopy(given)
        fixed = ("name", "namespace", "uid", "creationTimestamp", "generation")
        new["metadata"] = new.get("metadata", {}) | {k: old["metadata"][k] for k in fixed}
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] += 1
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        return old if new == old else self._keep("MODIFIED", kind, new)

    def patch(self, kind: Kind, namespace: str, name: str, patch: Any, form: str) -> Object:
        old = self.get(kind, namespace, name)
        return self.update(kind, namespace, name, _patched(old, patch, form))

    def delete_worker(self, kind: Kind, namespace: str, name: str) -> Object:
        gone = self.get(kind, namespace, name)
        del self.objects[kind.plural, namespace, name]
        self._tell("DELETED", kind, gone)
        return gone

    def scale(self, kind: Kind, namespace: str, name: str) -> Object:
        of = self.get(kind, namespace, name)
        kept = ("name", "namespace", "resourceVersion", "uid", "creationTimestamp")
        return {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {key: of["metadata"][key] for key in kept},
            "spec": {"replicas": of["spec"].get("replicas", 0)},
            "status": {
                "replicas": of.get("status", {}).get("replicas", 0),
                "selector": f"app={name}",
            },
        }

    def put_scale(self, kind: Kind, namespace: str, name: str, given: Object) -> Object:
        replicas = given.get("spec", {}).get("replicas", 0)
        if not isinstance(replicas, int) or replicas < 0:
            raise Refused(422, "Invalid", f"spec.replicas: {replicas!r}")
        old = self.get(kind, namespace, name)
        version = given.get("metadata", {}).get("resourceVersion")
        new = old | {
            "spec": old["spec"] | {"replicas": replicas},
            "metadata": old["metadata"] | ({"resourceVersion": version} if version else {}),
        }
        self.update(kind, namespace, name, new)
        return self.scale(kind, namespace, name)

    def patch_scale(self, kind: Kind, namespace: str, name: str, patch: Any, form: str) -> Object:
        new = _patched(self.scale(kind, namespace, name), patch, form)
        return self.put_scale(kind, namespace, name, new)

    def set_status(self, kind: Kind, found: Object, status: Object) -> None:
        """Set the status as the controller does: without a new generation."""
        if found.get("status") != status:
            self._keep("MODIFIED", kind, found | {"status": status})

    def compact(self) -> None:
        """Forget the history, so that older watches are gone."""
        self.live_history.clear()
        self.oldest = self.version

    def bookmark(self) -> None:
        """Send a bookmark with the current version to all watches that request bookmarks."""
        self._tell("BOOKMARK", None, {})

    def _keep(self, type_: str, kind: Kind, made: Object) -> Object:
        made = copy.deepcopy(made)
        made["metadata"]["resourceVersion"] = str(self.version + 1)
        where = made["metadata"]
        self.objects[kind.plural, where["namespace"], where["name"]] = made
        self._tell(type_, kind, made)
        return made

    def _tell(self, type_: str, kind: Any, about: Object) -> None:
        if type_ != "BOOKMARK":
            self.version += 1
        self.live_history.append(Event(self.version, type_, kind, copy.deepcopy(about)))
        self.heard()


def _patched(old: Object, patch: Any, form: str) -> Object:
    try:
        new = patched(old, patch) if "json-patch" in form else merged(old, patch)
    except PatchError as error:
        raise Refused(422, "Invalid", str(error)) from None
    if not isinstance(new, dict):
        raise Refused(400, "BadRequest", "not an object")
    return new
