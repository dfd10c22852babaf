"""Pods that a label selector finds: listed once, then watched.

A watch goes on where it ended.  When the API server no longer knows what has happened since (410),
everything is listed anew; until that is done, what was found before goes on counting.
"""

import asyncio
from typing import Literal
from urllib.parse import quote, urlencode

import msgspec

from select_service.core.discovery.candidates import Candidate
from select_service.core.discovery.pods import Pod, PodTemplate, candidate_of, serves
from select_service.edge.discovery.completing import Completing
from select_service.edge.discovery.kubernetes_api import KubeApi, KubeFault
from select_service.edge.discovery.source import Readings
from select_service.settings.discovery import KubernetesSource

PAGE = 100
"""Pods of one page of a list: decoding one takes milliseconds."""
WATCH_S = 300
"""After which the API server ends a watch, which then goes on with another."""
SILENCE_S = 330.0
AGAIN_S, AGAIN_S_MAX = 1.0, 30.0
"""After a failure: twice as long each time."""
PAUSE_S = 0.1
"""From the end of a watch to the next request."""
PODS_MAX = 16_384
GONE = 410


class _ListMetadata(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815
    continue_: str = msgspec.field(name="continue", default="")


class _PodList(msgspec.Struct):
    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)
    items: list[Pod] = msgspec.field(default_factory=list)


class _Event(msgspec.Struct):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class _Failure(msgspec.Struct):
    code: int = 0
    message: str = ""


class KubernetesPods:
    """Belongs to one event loop."""

    def __init__(
        self, source: KubernetesSource, readings: Readings, completing: Completing, api: KubeApi
    ) -> None:
        self._source = source
        self._template = PodTemplate(source.port, source.worker)
        self._readings = readings
        self._completing = completing
        self._api = api
        self._found: dict[str, Candidate] = {}
        """Pods that serve, by namespace and name."""
        self._wrong: dict[str, str] = {}
        """Those that make no candidate, and why.  What one was before goes on counting."""
        self._version = ""
        """Up to which everything is known; empty: nothing is."""

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
            except (KubeFault, msgspec.DecodeError) as fault:
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
        return f"/api/v1{where}/pods?{urlencode(query)}"

    async def _list(self) -> None:
        """Everything anew.  Raises KubeFault, DecodeError."""
        pods: list[Pod] = []
        page = _PodList()
        while True:
            query = {"continue": page.metadata.continue_} if page.metadata.continue_ else {}
            content = await self._api.page(await self._path(limit=str(PAGE), **query))
            page = await asyncio.to_thread(msgspec.json.decode, content, type=_PodList)
            pods += page.items
            if len(pods) > PODS_MAX:
                raise KubeFault(0, f"more than {PODS_MAX} pods")
            if not page.metadata.continue_:
                break
        for key in (self._found.keys() | self._wrong.keys()) - {pod.key for pod in pods}:
            self._forget(key)
        for number, pod in enumerate(pods, 1):
            self._judge(pod)
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
            for line in lines:
                self._take(msgspec.json.decode(line, type=_Event))
            self._heard()

    def _take(self, event: _Event) -> None:
        """Raises KubeFault."""
        if event.type == "ERROR":
            failure = msgspec.json.decode(event.object, type=_Failure)
            raise KubeFault(failure.code, failure.message)
        pod = msgspec.json.decode(event.object, type=Pod)
        if event.type == "DELETED":
            self._forget(pod.key)
        elif event.type != "BOOKMARK":
            self._judge(pod)
        self._version = pod.metadata.resourceVersion or self._version

    def _judge(self, pod: Pod) -> None:
        if not serves(pod):
            self._forget(pod.key)
            return
        try:
            self._found[pod.key] = candidate_of(pod, self._template)
            self._wrong.pop(pod.key, None)
        except ValueError as error:
            self._wrong[pod.key] = str(error)

    def _forget(self, key: str) -> None:
        self._found.pop(key, None)
        self._wrong.pop(key, None)

    def _heard(self) -> None:
        self._readings.was_read()
        self._completing.want(list(self._found.values()), dict(self._wrong))
