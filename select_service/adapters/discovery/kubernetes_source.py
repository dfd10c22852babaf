"""Objects matched by a Kubernetes label selector: listed once, then watched.

A watch resumes where the previous one ended.  When the API server no longer has the history since
then (410), all objects are listed again; until the new list is complete, the previous objects stay.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import ClassVar, Generic, Literal, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from select_service.adapters.discovery.engine_prober import EngineProber
from select_service.adapters.discovery.kubernetes_watch import (
    KubernetesWatchClient,
)
from select_service.adapters.discovery.source_status import SourceStatus
from select_service.base.decode_errors import DECODE_ERRORS
from select_service.config.discovery_sources import KubernetesSource
from select_service.core.registry.discovery.engine_candidates import EngineCandidate
from select_service.net.http_client.reading_budget import reading_budget
from select_service.net.kubernetes_session import KubernetesError

PAGE_OBJECTS = 25
"""Number of objects per list page; decoding one object takes 1 to 2 ms."""
EVENTS_AT_ONCE = 16
"""Number of watch events processed in a step."""
WATCH_S = 300
"""Duration after which the API server ends a watch, in seconds; another watch follows."""
SILENCE_S = 330.0
RETRY_S, RETRY_S_MAX = 1.0, 30.0
"""First and longest delay after a failure, in seconds; the delay doubles each time."""
PAUSE_S = 0.1
"""Delay between the end of a watch and the next request, in seconds."""
DOCUMENTS_MAX = 16_384
HTTP_GONE = 410


class _ListMetadata(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815
    continue_: str = msgspec.field(name="continue", default="")


class ListedMetadata(Protocol):
    @property
    def resourceVersion(self) -> str: ...  # noqa: N802


class ListedObject(Protocol):
    """Kubernetes object.

    key: its namespace and name
    """

    @property
    def metadata(self) -> ListedMetadata: ...
    @property
    def key(self) -> str: ...


D = TypeVar("D", bound=ListedObject)


class _List(msgspec.Struct, Generic[D]):
    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)
    items: list[D] = msgspec.field(default_factory=list)


class _Event(msgspec.Struct):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class _Failure(msgspec.Struct):
    code: int = 0
    message: str = ""


class KubernetesDiscoverySource(ABC, Generic[D]):
    """Base class of Kubernetes sources.  Belongs to one event loop.

    form: type of an object
    path, plural: location of the objects on the API server
    """

    form: ClassVar[type]
    path: ClassVar[str]
    plural: ClassVar[str]

    def __init__(
        self,
        source: KubernetesSource,
        readings: SourceStatus,
        completing: EngineProber,
        api: KubernetesWatchClient,
    ) -> None:
        self._source = source
        self._readings = readings
        self._completing = completing
        self._api = api
        self._ready_engines: dict[str, Sequence[EngineCandidate]] = {}
        """Ready engines, by the key of their object."""
        self._object_errors: dict[str, str] = {}
        """Errors of objects without candidates, by key.

        Previous engines of these objects are kept.
        """
        self._version = ""
        """Resource version up to which all changes are known; empty before the first list."""

    @abstractmethod
    def ready_engines(self, document: D) -> Sequence[EngineCandidate]:
        """Return the ready engines of an object.  Raises ValueError with a one-line message."""

    def all_candidates(self) -> list[EngineCandidate]:
        """Return the candidates of all objects."""
        return [each for found in self._ready_engines.values() for each in found]

    async def run(self) -> None:
        """Follow the objects and probe the engines until cancelled."""
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._completing.run_prober())
                both.create_task(self._follow_objects())
        finally:
            await self._api.close()

    async def _follow_objects(self) -> None:
        again_s = RETRY_S
        while True:
            try:
                if not self._version:
                    await self._list_objects()
                await self._watch_objects()
            except (KubernetesError, *DECODE_ERRORS) as fault:
                if isinstance(fault, KubernetesError) and fault.status == HTTP_GONE:
                    # 410 Gone: the history since this version is compacted; only a new list helps.
                    self._version = ""
                else:
                    is_first = self._readings.error is None
                    again_s = RETRY_S if is_first else min(2.0 * again_s, RETRY_S_MAX)
                    self._readings.record_failure(str(fault))
                    await asyncio.sleep(again_s)
            await asyncio.sleep(PAUSE_S)

    async def _request_path(self, **query: str) -> str:
        """Return the path of a request with its query.  Raises KubernetesError."""
        namespace = self._source.namespace
        if namespace is None:
            namespace = await self._api.own_namespace()
        where = "" if namespace == "*" else f"/namespaces/{quote(namespace, safe='')}"
        query["labelSelector"] = self._source.labels
        return f"{self.path}{where}/{self.plural}?{urlencode(query)}"

    async def _list_objects(self) -> None:
        """List all objects again.  Raises KubernetesError, DecodeError."""
        found: list[D] = []
        form = _List[self.form]  # type: ignore[name-defined]
        page = _List[D]()
        while True:
            query = {"continue": page.metadata.continue_} if page.metadata.continue_ else {}
            content = await self._api.get_page(
                await self._request_path(limit=str(PAGE_OBJECTS), **query)
            )
            page = await asyncio.to_thread(msgspec.json.decode, content, type=form)
            found += page.items
            if len(found) > DOCUMENTS_MAX:
                raise KubernetesError(0, f"more than {DOCUMENTS_MAX} {self.plural}")
            if not page.metadata.continue_:
                break
        # Deletions during an interruption have no watch event; only the new list shows them.
        for key in (self._ready_engines.keys() | self._object_errors.keys()) - {
            each.key for each in found
        }:
            self._forget_object(key)
        for number, document in enumerate(found, 1):
            self._update_object(document)
            if number % PAGE_OBJECTS == 0:
                await asyncio.sleep(0)
        # Set last: a list that fails half-way leaves the version empty and is repeated.
        self._version = page.metadata.resourceVersion
        self._publish_candidates()

    async def _watch_objects(self) -> None:
        """Follow changes until the API server ends the watch.

        Raises KubernetesError, DecodeError.
        """
        path = await self._request_path(
            watch="true",
            resourceVersion=self._version,
            allowWatchBookmarks="true",
            timeoutSeconds=str(WATCH_S),
        )
        async for lines in self._api.watch_events(path, SILENCE_S):
            await reading_budget().run_steps(self._process_events(lines))
            self._publish_candidates()

    def _process_events(self, lines: Sequence[bytes]) -> Generator[None, None, None]:
        """Process watch events in steps.  Raises KubernetesError, DecodeError."""
        for number, line in enumerate(lines, 1):
            self._process_event(msgspec.json.decode(line, type=_Event))
            if number % EVENTS_AT_ONCE == 0:
                yield

    def _process_event(self, event: _Event) -> None:
        """Process one watch event.  Raises KubernetesError."""
        if event.type == "ERROR":
            failure = msgspec.json.decode(event.object, type=_Failure)
            raise KubernetesError(failure.code, failure.message)
        document: D = msgspec.json.decode(event.object, type=self.form)
        if event.type == "DELETED":
            self._forget_object(document.key)
        elif event.type != "BOOKMARK":
            self._update_object(document)
        # Bookmarks carry a version too, so that a quiet watch can resume after hours.
        self._version = document.metadata.resourceVersion or self._version

    def _update_object(self, document: D) -> None:
        key = document.key
        try:
            serving = self.ready_engines(document)
        except ValueError as error:
            # The previous engines of this object stay in `_ready_engines`: a typo must not remove
            # serving
            # workers.
            self._object_errors[key] = str(error)
            return
        if not serving:
            self._forget_object(key)
            return
        self._ready_engines[key] = serving
        self._object_errors.pop(key, None)

    def _forget_object(self, key: str) -> None:
        self._ready_engines.pop(key, None)
        self._object_errors.pop(key, None)

    def _publish_candidates(self) -> None:
        self._readings.record_success()
        self._completing.set_candidates(self.all_candidates(), dict(self._object_errors))
