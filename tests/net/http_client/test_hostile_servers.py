"""Tests of every HTTP client of the service and the planner against hostile servers."""

import asyncio
import contextlib
import itertools
from collections import Counter

import pytest
import uvloop

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.discovery.kubernetes_watch import KubernetesWatchClient
from select_service.adapters.http_get import HttpClient
from select_service.adapters.probe_http import TimedHttpClient
from select_service.net.http_client.http_connection import HttpConnection
from select_service.net.http_client.http_error import HttpError
from select_service.net.http_client.reading_budget import (
    BUFFER_BYTES,
    TURN_STEPS_MAX,
    reading_budget,
)
from select_service.net.http_client.response_parser import (
    FRAMING_BYTES_MAX,
    FRAMING_SHARE,
    PIECE_BYTES,
    ResponseParser,
)
from select_service.net.kubernetes_session import KubernetesError
from select_service.planner.connectors.kube.api_client import KubernetesApiClient
from select_service.planner.planner_http import PlannerHttpClient
from tests.builders.polling import PATIENCE_S
from tests.net.hostile_http import ATTACKS, HostileServer

BYTES_MAX = 1 << 20
ENGINES = 6
SHORT_S = 0.5
FAULTS = (HttpError, KubernetesError)
ENDS = {
    "interim responses": "interim responses",
    "headers": "headers",
    "one header": "framing bytes",
    "chunks of a byte": "framing bytes",
    "chunk extensions": "framing bytes",
    "trailers": "headers",
    "a body": f"more than {BYTES_MAX} bytes",
    "a slow drip": "no complete answer within",
    "a gzip bomb": "content-encoding is gzip",
    "redirects": "status 302",
}
"""Error text of an attack; other attacks are answers."""


class Watched:
    """Recorder of received and parsed bytes, by turn of the loop."""

    def __init__(self, monkeypatch):
        self.turn = 0
        self.receive, self.parsed = Counter(), Counter()
        feed, updated = ResponseParser.feed_piece, HttpConnection.buffer_updated

        def feeding(parser, piece):
            assert len(piece) <= PIECE_BYTES
            self.parsed[self.turn] += len(piece)
            feed(parser, piece)

        def updating(connection, size):
            self.receive[self.turn] += size
            updated(connection, size)

        monkeypatch.setattr(ResponseParser, "feed_piece", feeding)
        monkeypatch.setattr(HttpConnection, "buffer_updated", updating)

    async def count_turns(self):
        for self.turn in itertools.count():
            await asyncio.sleep(0)


async def failure_text(http, url, timeout_s=PATIENCE_S):
    """Return the error text of a failure, empty for an answer."""
    try:
        await http.get_body(url, accept="*/*", bytes_max=BYTES_MAX, timeout_s=timeout_s)
    except HttpError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_has_more_of_a_turn_than_its_steps(run, attack, monkeypatch):
    """The limit holds however fast the servers and this machine are."""
    watched = Watched(monkeypatch)

    async def scene(url):
        counting = asyncio.create_task(watched.count_turns())
        http = HttpClient(Resolver())
        timeout_s = SHORT_S if attack == "a slow drip" else PATIENCE_S
        ends = await asyncio.gather(
            *(failure_text(http, f"{url}/{n}", timeout_s) for n in range(ENGINES))
        )
        await http.close()
        counting.cancel()
        return ends

    with HostileServer(attack) as server:
        ends = run(scene(server.url))
    for end in ends:
        assert ENDS.get(attack, "") in end
        assert (attack in ENDS) is bool(end)
    assert max(watched.parsed.values()) <= TURN_STEPS_MAX * PIECE_BYTES
    assert max(watched.receive.values()) <= ENGINES * BUFFER_BYTES
    bytes_max = BYTES_MAX * (1 + 1 / FRAMING_SHARE) + FRAMING_BYTES_MAX + 3 * BUFFER_BYTES
    assert sum(watched.receive.values()) <= ENGINES * bytes_max


def test_an_honest_answer_does_not_wait_for_the_end_of_hostile_ones():
    async def scene(hostile, honest):
        http = HttpClient(Resolver())
        asking = [
            asyncio.create_task(failure_text(http, f"{hostile}/{n}", PATIENCE_S)) for n in range(30)
        ]
        await failure_text(http, honest)
        assert await failure_text(http, honest) == ""
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)
        await http.close()

    with HostileServer("a slow drip") as hostile, HostileServer("half a MB") as honest:
        uvloop.run(scene(hostile.url, honest.url))


async def by_post(url, folder):
    reply = await TimedHttpClient(Resolver()).post(
        url, b"{}", {}, bytes_max=BYTES_MAX, timeout_s=PATIENCE_S
    )
    return reply.fault


async def by_outbound(url, folder):
    async with PlannerHttpClient() as http:
        await http.get(url, {"query": "up"})


async def by_outbound_post(url, folder):
    async with PlannerHttpClient() as http:
        await http.post(url, b"{}")


def kubeconfig(url, folder):
    path = folder / "config"
    path.write_text(f"""
apiVersion: v1
kind: Config
current-context: here
clusters: [{{name: fake, cluster: {{server: "{url}"}}}}]
users: [{{name: us, user: {{token: secret}}}}]
contexts: [{{name: here, context: {{cluster: fake, user: us}}}}]
""")
    return path


async def by_kube_list(url, folder):
    pytest.importorskip("kubernetes_asyncio")
    api = KubernetesWatchClient(kubeconfig(url, folder))
    try:
        await api.get_page("/api/v1/pods")
    finally:
        await api.close()


async def by_kube_watch(url, folder):
    pytest.importorskip("kubernetes_asyncio")
    api = KubernetesWatchClient(kubeconfig(url, folder))
    try:
        async with contextlib.aclosing(api.watch_events("/api/v1/pods", PATIENCE_S)) as events:
            async for _ in events:
                pass
    finally:
        await api.close()


async def by_planners_kube(url, folder):
    pytest.importorskip("kubernetes_asyncio")
    client = KubernetesApiClient(kubeconfig(url, folder))
    try:
        await client.call("PATCH", "/apis/apps/v1/deployments", {"spec": {}})
    finally:
        await client.close()


CLIENTS = [by_post, by_outbound, by_outbound_post, by_kube_list, by_kube_watch, by_planners_kube]
REFUSED = ("interim responses", "headers", "one header", "chunks of a byte", "trailers")


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("attack", REFUSED)
def test_every_client_reports_the_fault_and_goes_on(client, attack, tmp_path):
    async def scene(url):
        try:
            return await client(url, tmp_path)
        except FAULTS as error:
            return str(error)

    with HostileServer(attack) as server:
        assert ENDS[attack] in uvloop.run(scene(server.url))


def test_reading_keeps_nothing_of_attacks():
    async def scene(urls):
        http = HttpClient(Resolver())
        for url in urls * 3:
            await failure_text(http, url, SHORT_S)
        await http.close()
        assert not reading_budget()._queue

    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(HostileServer(attack)) for attack in REFUSED]
        uvloop.run(scene([server.url for server in servers]))
