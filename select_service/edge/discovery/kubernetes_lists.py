"""What a label selector finds in Kubernetes: listed once, then watched.

A watch goes on where it ended.  When the API server no longer knows what has happened since (410),
everything is listed anew; until that is done, what was found before goes on counting.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import ClassVar, Generic, Literal, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from select_service.core.discovery.candidates import Candidate
from select_service.edge.discovery.completing import Completing
from select_service.edge.discovery.kubernetes_api import KubeApi, KubeFault
from select_service.edge.discovery.source import Readings
from select_service.outgoing.reading_budget import reading_budget
from select_service.settings.discovery import KubernetesSource
from select_service.unreadable_json import UNREADABLE

PAGE = 25
"""Documents of one page of a list: decoding one takes a millisecond or two."""
EVENTS_AT_ONCE = 16
"""Of a watch, decoded and judged in one step."""
WATCH_S = 300
"""After which the API server ends a watch, which then goes on with another."""
SILENCE_S = 330.0
AGAIN_S, AGAIN_S_MAX = 1.0, 30.0
"""After a failure: twice as long each time."""
PAUSE_S = 0.1
"""From the end of a watch to the next request."""
DOCUMENTS_MAX = 16_384
GONE = 410


class _ListMetadata(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815
    continue_: str = msgspec.field(name="continue", default="")


class Metadata(Protocol):
    @property
    def resourceVersion(self) -> str: ...  # noqa: N802


class Document(Protocol):
    """key: its namespace and name"""

    @property
    def metadata(self) -> Metadata: ...
    @property
    def key(self) -> str: ...


D = TypeVar("D", bound=Document)


class _List(msgspec.Struct, Generic[D]):
    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)
    items: list[D] = msgspec.field(default_factory=list)


class _Event(msgspec.Struct):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class _Failure(msgspec.Struct):
    code: int = 0
    message: str = ""


class KubernetesList(ABC, Generic[D]):
    """Belongs to one event loop.  Subclasses say what is listed, and what follows from it.

    form: of a document;  path, plural: where the API server has them
    """

    form: ClassVar[type]
    path: ClassVar[str]
    plural: ClassVar[str]

    def __init__(
        self, source: KubernetesSource, readings: Readings, completing: Completing, api: KubeApi
    ) -> None:
        self._source = source
        self._readings = readings
        self._completing = completing
        self._api = api
        self._found: dict[str, Sequence[Candidate]] = {}
        """Engines that serve, by the key of the document that says them."""
        self._wrong: dict[str, str] = {}
        """Documents that make no candidates, and why.  What they were before goes on counting."""
        self._version = ""
        """Up to which everything is known; empty: nothing is."""

    @abstractmethod
    def serving(self, document: D) -> Sequence[Candidate]:
        """The engines that it says and that serve.  Raises ValueError with one line."""

    def candidates(self) -> list[Candidate]:
        """Of all documents."""
        return [each for found in self._found.values() for each in found]

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._completing.run())
                both.create_task(self._follow())
        finally:
            await self._api.close()

    async def _follow(self) -> None:
        again_s = AGAIN_S
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except (KubeFault, *UNREADABLE) as fault:
                if isinstance(fault, KubeFault) and fault.status == GONE:
                    self._version = ""
                else:
                    is_first = self._readings.error is None
                    again_s = AGAIN_S if is_first else min(2.0 * again_s, AGAIN_S_MAX)
                    self._readings.failed(str(fault))
                    await asyncio.sleep(again_s)
            await asyncio.sleep(PAUSE_S)

    async def _path(self, **query: str) -> str:
        """Raises KubeFault."""
        namespace = self._source.namespace
        if namespace is None:
            namespace = await self._api.namespace()
        where = "" if namespace == "*" else f"/namespaces/{quote(namespace, safe='')}"
        query["labelSelector"] = self._source.labels
        return f"{self.path}{where}/{self.plural}?{urlencode(query)}"

    async def _list(self) -> None:
        """Everything anew.  Raises KubeFault, DecodeError."""
        found: list[D] = []
        form = _List[self.form]  # type: ignore[name-defined]
        page = _List[D]()
        while True:
            query = {"continue": page.metadata.continue_} if page.metadata.continue_ else {}
            content = await self._api.page(await self._path(limit=str(PAGE), **query))
            page = await asyncio.to_thread(msgspec.json.decode, content, type=form)
            found += page.items
            if len(found) > DOCUMENTS_MAX:
                raise KubeFault(0, f"more than {DOCUMENTS_MAX} {self.plural}")
            if not page.metadata.continue_:
                break
        for key in (self._found.keys() | self._wrong.keys()) - {each.key for each in found}:
            self._forget(key)
        for number, document in enumerate(found, 1):
            self._judge(document)
            if number % PAGE == 0:
                await asyncio.sleep(0)
        self._version = page.metadata.resourceVersion
        self._heard()

    async def _watch(self) -> None:
        """Until the API server ends it.  Raises KubeFault, DecodeError."""
        path = await self._path(
            watch="true",
            resourceVersion=self._version,
            allowWatchBookmarks="true",
            timeoutSeconds=str(WATCH_S),
        )
        async for lines in self._api.events(path, SILENCE_S):
            await reading_budget().result_of(self._taking(lines))
            self._heard()

    def _taking(self, lines: Sequence[bytes]) -> Generator[None, None, None]:
        """Raises KubeFault, DecodeError."""
        for number, line in enumerate(lines, 1):
            self._take(msgspec.json.decode(line, type=_Event))
            if number % EVENTS_AT_ONCE == 0:
                yield

    def _take(self, event: _Event) -> None:
        """Raises KubeFault."""
        if event.type == "ERROR":
            failure = msgspec.json.decode(event.object, type=_Failure)
            raise KubeFault(failure.code, failure.message)
        document: D = msgspec.json.decode(event.object, type=self.form)
        if event.type == "DELETED":
            self._forget(document.key)
        elif event.type != "BOOKMARK":
            self._judge(document)
        self._version = document.metadata.resourceVersion or self._version

    def _judge(self, document: D) -> None:
        key = document.key
        try:
            serving = self.serving(document)
        except ValueError as error:
            self._wrong[key] = str(error)
            return
        if not serving:
            self._forget(key)
            return
        self._found[key] = serving
        self._wrong.pop(key, None)

    def _forget(self, key: str) -> None:
        self._found.pop(key, None)
        self._wrong.pop(key, None)

    def _heard(self) -> None:
        self._readings.was_read()
        self._completing.want(self.candidates(), dict(self._wrong))
