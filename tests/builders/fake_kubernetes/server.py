"""The fake over HTTP or HTTPS: discovery, objects, scale, watches, and faults on demand."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.builders.fake_kubernetes.controller import Controller
from tests.builders.fake_kubernetes.kinds import KINDS, Kind
from tests.builders.fake_kubernetes.store import Event, Object, Refused, Store


@dataclass
class Fault:
    """Fault to inject into a request.

    status: status to answer; 0 cuts the connection; None means that no answer ever comes
    """

    method: str
    path: str
    status: int | None
    times: int = 1


@dataclass
class FakeKubernetes:
    """API server.

    read_token: token that requests must carry; None means that every request is allowed
    """

    read_token: str | None = None
    store: Store = field(default_factory=Store)
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self.controller = Controller(self.store)
        self._heard = asyncio.Event()
        self.ended = asyncio.Event()
        self.store.heard = self._wake

    def _wake(self) -> None:
        self._heard.set()
        self._heard = asyncio.Event()

    def writes(self) -> list[tuple[str, str]]:
        """Return the requests that change something other than leases."""
        return [r for r in self.requests if r[0] != "GET" and "/leases" not in r[1]]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        try:
            await self._abort_after_bug(request)
            if (
                self.read_token
                and request.headers.get("Authorization") != f"Bearer {self.read_token}"
            ):
                raise Refused(401, "Unauthorized", "Unauthorized")
            return await self._answered(request)
        except Refused as refused:
            return web.json_response(refused.body(), status=refused.status)

    async def _abort_after_bug(self, request: web.Request) -> None:
        for fault in self.faults:
            if fault.times and fault.method == request.method and fault.path in request.path:
                fault.times -= 1
                if fault.status is None:
                    await self.ended.wait()
                if fault.status == 0 and request.transport is not None:
                    request.transport.abort()
                raise Refused(fault.status or 500, "Injected", f"injected {fault.status}")

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        found = discovered(parts)
        if found is not None:
            return web.json_response(found)
        kind, namespace, rest = _place(parts)
        if not rest:
            if request.method == "GET":
                return await self._list_objects(request, kind, namespace)
            body = await _body(request)
            return web.json_response(self.store.create(kind, namespace or "", body), status=201)
        name, *sub = rest
        if sub and (sub != ["scale"] or not kind.scaled_by):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        act = self._apply_decision if sub else self._object
        return web.json_response(await act(request, kind, namespace or "", name))

    async def _object(self, request: web.Request, kind: Kind, space: str, name: str) -> Object:
        if request.method == "GET":
            return self.store.get(kind, space, name)
        if request.method == "DELETE":
            condition = ((await _body(request)) if request.can_read_body else {}).get(
                "preconditions", {}
            )
            uid = self.store.get(kind, space, name)["metadata"]["uid"]
            if condition.get("uid", uid) != uid:
                raise Refused(409, "Conflict", f"the UID in the precondition is not {uid}")
            return self.store.delete_worker(kind, space, name)
        body = await _body(request)
        if request.method == "PUT":
            return self.store.update(kind, space, name, body)
        return self.store.patch(kind, space, name, body, _form(request))

    async def _apply_decision(
        self, request: web.Request, kind: Kind, space: str, name: str
    ) -> Object:
        if request.method == "GET":
            return self.store.scale(kind, space, name)
        body = await _body(request)
        if request.method == "PUT":
            return self.store.put_scale(kind, space, name, body)
        return self.store.patch_scale(kind, space, name, body, _form(request))

    async def _list_objects(
        self, request: web.Request, kind: Kind, namespace: str | None
    ) -> web.StreamResponse:
        if request.query.get("watch") in ("1", "true"):
            return await self._watch(request, kind, namespace)
        items = [o for o in self.store.list(kind, namespace) if _is_chosen(o, request.query)]
        begin, version = _continued(request, self.store.version)
        end = begin + int(request.query.get("limit") or len(items) or 1)
        metadata = {"resourceVersion": str(version)}
        if end < len(items):
            metadata["continue"] = f"{end}-{version}"
        body = {
            "kind": f"{kind.kind}List",
            "apiVersion": kind.api_version,
            "metadata": metadata,
            "items": items[begin:end],
        }
        return web.json_response(body)

    async def _watch(
        self, request: web.Request, kind: Kind, namespace: str | None
    ) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion") or self.store.version)
        if since < self.store.oldest:
            raise Refused(410, "Expired", f"too old resource version: {since}")
        marks = request.query.get("allowWatchBookmarks") in ("1", "true")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        until = loop.time() + float(request.query.get("timeoutSeconds", "300"))
        seen = 0
        while loop.time() < until and not self.ended.is_set():
            if since < self.store.oldest:
                gone = Refused(410, "Expired", f"too old resource version: {since}").body()
                await response.write(_line("ERROR", gone))
                break
            heard, history = self._heard, self.store.live_history
            for event in history[seen:] if seen <= len(history) else history:
                if _concerns(event, kind, namespace, marks) and event.version >= since:
                    if event.type != "BOOKMARK" and event.version == since:
                        continue
                    await response.write(_line(*_watched_event(event, kind, request.query)))
            seen, since = len(history), max(since, self.store.version)
            with_deadline = asyncio.wait_for(heard.wait(), max(0.0, until - loop.time()))
            try:
                await with_deadline
            except TimeoutError:
                break
        return response


def _continued(request: web.Request, version: int) -> tuple[int, int]:
    """Return the begin of a page and the version of the list, by default the newest version."""
    token = request.query.get("continue")
    if token is None:
        return 0, version
    begin, of_version = map(int, token.split("-"))
    return begin, of_version


def _line(type_: str, about: Object) -> bytes:
    return json.dumps({"type": type_, "object": about}).encode() + b"\n"


def _concerns(event: Event, kind: Kind, namespace: str | None, marks: bool) -> bool:
    if event.type == "BOOKMARK":
        return marks
    where = event.object["metadata"]["namespace"]
    return event.kind == kind and namespace in (None, where)


def _watched_event(event: Event, kind: Kind, query: Any) -> tuple[str, Object]:
    """Return type and object of an event for a watch.

    An object that the watch no longer selects is reported as deleted.
    """
    if event.type != "BOOKMARK":
        return event.type if _is_chosen(event.object, query) else "DELETED", event.object
    metadata = {"resourceVersion": str(event.version)}
    return event.type, {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}


def _is_chosen(found: Object, query: Any) -> bool:
    labels = found["metadata"].get("labels", {})
    wanted = [part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part]
    fields = [part.split("=", 1) for part in query.get("fieldSelector", "").split(",") if part]
    named = all(found["metadata"]["name"] == v for k, v in fields if k == "metadata.name")
    return named and all(labels.get(key) == value for key, value in wanted)


def _form(request: web.Request) -> str:
    form = request.headers.get("Content-Type", "")
    known = ("merge-patch+json", "json-patch+json", "strategic-merge-patch+json")
    if not any(word in form for word in known):
        raise Refused(415, "UnsupportedMediaType", form)
    return form


async def _body(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except ValueError as error:
        raise Refused(400, "BadRequest", str(error)) from None


def discovered(parts: list[str]) -> Object | None:
    """Return the discovery document at this path, or None; paths of objects have none."""
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if parts == ["apis"]:
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups()}
    for kind in KINDS:
        root = ["apis", kind.group, kind.version] if kind.group else ["api", kind.version]
        if parts == root:
            of_group = [k for k in KINDS if k.api_version == kind.api_version]
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": kind.api_version,
                "resources": [r for k in of_group for r in k.resources()],
            }
    return None


def _groups() -> list[Object]:
    versions: dict[str, list[Object]] = {}
    for kind in KINDS:
        version: Object = {"groupVersion": kind.api_version, "version": kind.version}
        if kind.group and version not in versions.setdefault(kind.group, []):
            versions[kind.group].append(version)
    return [
        {"name": group, "versions": found, "preferredVersion": found[0]}
        for group, found in sorted(versions.items())
    ]


def _place(parts: list[str]) -> tuple[Kind, str | None, list[str]]:
    """Return kind, namespace and the rest of a path. Raises Refused."""
    for kind in KINDS:
        root = ["apis", kind.group, kind.version] if kind.group else ["api", kind.version]
        if parts[: len(root)] != root:
            continue
        rest, namespace = parts[len(root) :], None
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        if rest[:1] == [kind.plural]:
            return kind, namespace, rest[1:]
    raise Refused(404, "NotFound", "not found")


@asynccontextmanager
async def serving(
    fake: FakeKubernetes, tls: ssl.SSLContext | None = None
) -> AsyncIterator[FakeKubernetes]:
    """Serve on a free port; the end does not wait for open watches."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.answer)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    fake.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        fake.ended.set()
        fake.store.heard()
        await runner.cleanup()
