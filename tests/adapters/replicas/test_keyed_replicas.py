"""Tests of replicas with CURVE keys over real sockets: permitted senders, receivers, identities."""

import asyncio
import contextlib
import subprocess
import sys
from functools import partial

import msgspec
import numpy as np
import pytest
import zmq

from indexer.sockets.curve_keypairs import CurveServerKeys, connecting_options, new_key_pair
from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.http_get import HttpClient
from select_service.adapters.replicas import curve_peers, peer_list
from select_service.adapters.replicas import replica_sync as replica_sync
from select_service.auth.replica_keys_schema import key_mark_of
from select_service.base.errors import BadRequest
from select_service.core.identity import Rank
from select_service.core.replication import digest as replica_digest
from select_service.core.replication import load_events as replica_events
from select_service.core.replication import prefill_progress as replica_progress
from select_service.core.replication.digest import Digest
from select_service.core.replication.load_events import (
    LoadEventEncoder,
    ReservationAdmitted,
    ReservationFreed,
)
from select_service.core.replication.router_ids import CHOSEN_BITS
from tests.adapters.replicas.planes import Plane, keys_text, plane_keys
from tests.builders import a_reservation
from tests.builders.launched_process import free_port
from tests.builders.polling import eventually_on_loop

A, B, STRANGER = new_key_pair(), new_key_pair(), new_key_pair()


@pytest.fixture(autouse=True)
def _all_is_tried_often(monkeypatch):
    monkeypatch.setattr(curve_peers, "LOOK_S", 0.02)
    monkeypatch.setattr(replica_sync, "RECONNECT_S", 0.5)


class Fleet:
    """Key file of `a` and `b`, and their planes on demand."""

    def __init__(self, stack, path, **more):
        self.stack = stack
        self.path = path / "replicas.toml"
        self.ports = {"a": free_port(), "b": free_port()}
        self.iterate_entries = {name: {"endpoint": self.endpoint(name)} for name in self.ports}
        self.iterate_entries["b"] |= more
        self.write()
        self.planes = []

    def endpoint(self, name):
        return f"tcp://127.0.0.1:{self.ports[name]}"

    def write(self, **pairs):
        """pairs: replacements of the usual keys; None omits the replica"""
        pairs = {"a": A, "b": B} | pairs
        known = [(name, pair, self.iterate_entries[name]) for name, pair in pairs.items() if pair]
        new = self.path.with_suffix(".new")
        new.write_text(keys_text(*known))
        new.replace(self.path)

    def plane(self, name, **more):
        keys = plane_keys({"a": A, "b": B}[name], self.path)
        plane = Plane(ord(name), keys=keys, port=self.ports[name], **more)
        self.planes.append(plane)
        plane.sync.start(1, http_client(self.stack))
        return plane

    async def until(self, predicate):
        def is_so():
            for plane in self.planes:
                plane.sync.publish_digest()
            return predicate()

        await eventually_on_loop(is_so)


def http_client(stack):
    client = HttpClient(Resolver())
    stack.push_async_callback(client.close)
    return client


def fleet_of(stack, path, **more):
    fleet = Fleet(stack, path, **more)
    stack.callback(lambda: [plane.sync.close() for plane in fleet.planes])
    return fleet


def publisher(stack, port, pair):
    """Return a PUB socket with a pair that accepts every subscriber."""
    context = stack.enter_context(zmq.Context())
    socket = stack.enter_context(context.socket(zmq.PUB))
    socket.linger = 0
    if pair is not None:
        socket.curve_server, socket.curve_secretkey = True, pair.secret
    socket.bind(f"tcp://127.0.0.1:{port}")
    return socket


def listener(stack, port, server=None):
    context = stack.enter_context(zmq.Context())
    socket = stack.enter_context(context.socket(zmq.SUB))
    socket.linger = 0
    for option, value in connecting_options(server).items():
        socket.setsockopt(option, value)
    socket.subscribe(b"")
    socket.connect(f"tcp://127.0.0.1:{port}")
    return socket


def an_admission(name, router_id):
    return ReservationAdmitted(
        model_name="m",
        tenant_id="default",
        block_size=4,
        reservation_id=name,
        rank=Rank(1, 0),
        router_id=router_id,
        sequence_hashes=np.array([1, 2, 3], np.uint64),
        prefill_tokens_hint=12,
    )


def a_free(name, router_id):
    admitted = msgspec.structs.asdict(an_admission(name, router_id))
    return ReservationFreed(
        **{
            field: admitted[field]
            for field in ReservationFreed.__struct_fields__
            if field in admitted
        }
    )


def an_event(event):
    return [replica_events.EVENT_TOPIC, LoadEventEncoder().encode_event(event)]


def a_digest(router_id, *, url=None, number=1, lines=()):
    digest = Digest(
        router_id=router_id,
        number=number,
        sent=number,
        port=1,
        url=url,
        heard=[],
        own_only=True,
        lines=list(lines),
    )
    return [replica_digest.DIGEST_TOPIC, replica_digest.encode_digest(digest)]


def router_id_of(pair, chosen=7):
    return key_mark_of(pair.public.decode()) << CHOSEN_BITS | chosen


async def two_that_agree(stack, tmp_path):
    fleet = fleet_of(stack, tmp_path)
    a, b = fleet.plane("a"), fleet.plane("b")
    a.sync.register_peer(b.endpoint)
    b.sync.register_peer(a.endpoint)
    await fleet.until(lambda: a.peer().digests and b.peer().digests)
    return fleet, a, b


async def test_replicas_that_know_each_other_share_load(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        fleet, a, b = await two_that_agree(stack, tmp_path)
        a.selector.reserve(a_reservation("x"), 0.0)
        await fleet.until(lambda: b.selector.ledger.reservations.find_reservation("x"))
        b.selector.free_reservation("x", 0.0)
        await fleet.until(lambda: not a.selector.ledger.reservations.find_reservation("x"))
        status = a.sync.replica_status()
        assert (status.secured, status.keys_error, status.refused) == (True, None, 0)
        assert (a.peer().replica, b.peer().replica) == ("b", "a")
        assert a.selector.followers.replicas.router_id >> CHOSEN_BITS == key_mark_of(
            A.public.decode()
        )


async def test_replicas_with_an_unknown_key_or_none_get_no_events(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        fleet = fleet_of(stack, tmp_path)
        a, b = fleet.plane("a"), fleet.plane("b")
        b.sync.register_peer(a.endpoint)
        stranger = listener(stack, fleet.ports["a"], CurveServerKeys(A.public, STRANGER))
        plain = listener(stack, fleet.ports["a"])
        deceived = listener(stack, fleet.ports["a"], CurveServerKeys(STRANGER.public, B))
        await fleet.until(lambda: b.peer().digests > 2 and a.sync.replica_status().refused >= 2)
        assert not any(socket.poll(0) for socket in (stranger, plain, deceived))


async def test_a_sender_without_the_key_of_the_endpoint_is_ignored(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        fleet = fleet_of(stack, tmp_path)
        b = fleet.plane("b")
        impostor = publisher(stack, fleet.ports["a"], STRANGER)
        own = free_port()
        honest = publisher(stack, own, A)
        b.sync.register_peer(fleet.endpoint("a"))
        b.sync.register_peer(f"tcp://127.0.0.1:{own}", "a")

        def has_received_honest():
            for number, socket in enumerate((impostor, honest)):
                socket.send_multipart(an_event(an_admission(f"r{number}", router_id_of(A))))
            return b.selector.ledger.reservations.find_reservation("r1")

        await fleet.until(has_received_honest)
        assert not b.selector.ledger.reservations.find_reservation("r0")
        deceived, _ = sorted(b.sync.replica_status().peers, key=lambda peer: peer.frames_in)
        assert (deceived.frames_in, deceived.connected) == (0, False)


@pytest.mark.parametrize("origin", ["the receiver", "another replica", "nobody", "no mark"])
async def test_a_replica_may_send_only_its_own_events(tmp_path, origin):
    async with contextlib.AsyncExitStack() as stack:
        fleet = fleet_of(stack, tmp_path)
        b = fleet.plane("b")
        b.selector.reserve(a_reservation("booked"), 0.0)
        socket = publisher(stack, fleet.ports["a"], A)
        b.sync.register_peer(fleet.endpoint("a"))
        forged_id = {
            "the receiver": b.selector.followers.replicas.router_id,
            "another replica": router_id_of(STRANGER),
            "nobody": 7,
            "no mark": router_id_of(A) & (2**CHOSEN_BITS - 1),
        }[origin]
        progress = replica_progress.encode_progress(
            replica_progress.ProgressMessage(router_id=forged_id, rows=[])
        )
        forged = [
            an_event(an_admission("forged", forged_id)),
            an_event(a_free("booked", forged_id)),
            a_digest(forged_id),
            [replica_progress.PROGRESS_TOPIC, progress],
        ]

        def all_came():
            for frames in (*forged, an_event(an_admission("own", router_id_of(A)))):
                socket.send_multipart(frames)
            return (
                b.selector.ledger.reservations.find_reservation("own")
                and b.peer().dropped.get("origin", 0) >= 4
            )

        await fleet.until(all_came)
        assert not b.selector.ledger.reservations.find_reservation("forged")
        assert b.selector.ledger.reservations.find_reservation("booked")
        assert (b.peer().digests, b.peer().router_id) == (0, None)
        assert "own" not in b.peer().dropped


async def _count_connections(stack, *hosts):
    """Return the number of connections and the port of an HTTP listener on each host."""
    asked = dict.fromkeys(hosts, 0)
    ports = {}

    async def count_connection(host, reader, writer):
        asked[host] += 1
        writer.close()

    for host in hosts:
        server = await asyncio.start_server(partial(count_connection, host), host, 0)
        stack.callback(server.close)
        ports[host] = server.sockets[0].getsockname()[1]
    return asked, ports


async def test_a_list_is_fetched_from_the_url_of_the_file_not_of_a_digest(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        asked, ports = await _count_connections(stack, "127.0.0.1", "127.0.0.2")
        configured = f"http://127.0.0.1:{ports['127.0.0.1']}"
        fleet = fleet_of(stack, tmp_path, url=configured)
        a = fleet.plane("a", repair=True)
        foreign = f"http://127.0.0.2:{ports['127.0.0.2']}/internal"
        b = fleet.plane("b", url=foreign)
        b.selector.reserve(a_reservation("x"), 0.0)
        await eventually_on_loop(lambda: b.publisher.sent)  # without receivers
        a.sync.register_peer(b.endpoint)
        await fleet.until(lambda: asked["127.0.0.1"] > 0)
        assert asked["127.0.0.2"] == 0


@pytest.mark.parametrize("believes", [False, True])
async def test_without_keys_a_url_of_another_host_needs_trusted_peers(believes):
    async with contextlib.AsyncExitStack() as stack:
        asked, ports = await _count_connections(stack, "127.0.0.1", "127.0.0.2")
        a = Plane(1, repair=True, lax=believes)
        b = Plane(2, url=f"http://127.0.0.2:{ports['127.0.0.2']}")
        for plane in (a, b):
            stack.callback(plane.sync.close)
            plane.sync.start(ports["127.0.0.1"], http_client(stack))
        b.selector.reserve(a_reservation("x"), 0.0)
        await eventually_on_loop(lambda: b.publisher.sent)  # without receivers
        a.sync.register_peer(b.endpoint)
        right, other = ("127.0.0.2", "127.0.0.1") if believes else ("127.0.0.1", "127.0.0.2")

        def is_asked():
            a.sync.publish_digest()
            b.sync.publish_digest()
            return asked[right] > 0

        await eventually_on_loop(is_asked)
        assert asked[other] == 0


async def test_a_key_removed_from_the_file_neither_sends_nor_receives(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        fleet, a, b = await two_that_agree(stack, tmp_path)
        stolen = listener(stack, fleet.ports["a"], CurveServerKeys(A.public, B))
        await fleet.until(lambda: stolen.poll(0))
        fleet.write(b=None)
        await fleet.until(
            lambda: a.sync.replica_status().refused and not a.sync.replica_status().subscribers
        )
        assert (a.peer().replica, a.peer().connected) == (None, False)
        while stolen.poll(0):
            stolen.recv_multipart()
        heard, frames = a.peer().frames_in, b.peer().frames_in
        a.selector.reserve(a_reservation("secret"), 0.0)
        refused = a.sync.replica_status().refused
        await fleet.until(lambda: a.sync.replica_status().refused > refused)
        assert (a.peer().frames_in, b.peer().frames_in) == (heard, frames)
        assert not stolen.poll(0)
        fleet.write()
        await fleet.until(lambda: a.peer().frames_in > heard and b.peer().frames_in > frames)


async def test_the_list_of_a_replica_with_a_removed_key_is_aborted(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_list, "PAGE_S_MAX", 1000.0)
    monkeypatch.setattr(replica_sync, "REPAIR_S_MAX", 1000.0)
    async with contextlib.AsyncExitStack() as stack:
        asking, left = asyncio.Event(), asyncio.Event()

        async def never_answers(reader, writer):
            asking.set()
            while await reader.read(1000):
                pass
            left.set()
            writer.close()

        server = await asyncio.start_server(never_answers, "127.0.0.1", 0)
        stack.callback(server.close)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        fleet = fleet_of(stack, tmp_path, url=url)
        a, b = fleet.plane("a", repair=True), fleet.plane("b")
        b.selector.reserve(a_reservation("x"), 0.0)
        await eventually_on_loop(lambda: b.publisher.sent)  # without receivers
        a.sync.register_peer(b.endpoint)
        await fleet.until(asking.is_set)
        fleet.write(b=None)
        await fleet.until(left.is_set)
        await fleet.until(lambda: a.peer().replica is None)
        assert a.peer().repairs.runs == 1


async def test_a_wrong_file_changes_nothing_and_is_reported(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        fleet = fleet_of(stack, tmp_path)
        a, b = fleet.plane("a"), fleet.plane("b")
        a.sync.register_peer(b.endpoint)
        await fleet.until(lambda: a.peer().digests)
        fleet.path.write_text("[[replicas]]\nname = ")
        await fleet.until(lambda: a.sync.replica_status().keys_error)
        digests = a.peer().digests
        await fleet.until(lambda: a.peer().digests > digests + 2)
        fleet.write()
        await fleet.until(lambda: a.sync.replica_status().keys_error is None)


async def test_a_replica_that_gets_another_key_is_met_under_it(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        fleet = fleet_of(stack, tmp_path)
        b = fleet.plane("b")
        b.sync.register_peer(fleet.endpoint("a"))
        new = publisher(stack, fleet.ports["a"], STRANGER)
        await fleet.until(lambda: b.peer().seconds_since_last_error is None)
        assert b.peer().frames_in == 0
        fleet.write(a=STRANGER)

        def has_received():
            new.send_multipart(an_event(an_admission("new", router_id_of(STRANGER))))
            return b.selector.ledger.reservations.find_reservation("new")

        await fleet.until(has_received)


async def test_only_replicas_of_the_file_are_registered_and_others_are_waited_for(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        fleet = fleet_of(stack, tmp_path)
        fleet.write(a=None)
        a, b = fleet.plane("a"), fleet.plane("b")
        for refused in ((a.endpoint,), ("tcp://127.0.0.1:9", "c")):
            with pytest.raises(BadRequest, match="replica keys file"):
                b.sync.register_peer(*refused)
        b.sync.add_peer(a.endpoint)
        await fleet.until(lambda: b.peer().replica is None)
        assert not b.peer().connected
        fleet.write()
        await fleet.until(lambda: b.peer().digests)
        assert b.peer().replica == "a"


async def test_without_keys_no_replica_has_a_name():
    async with contextlib.AsyncExitStack() as stack:
        plane = Plane(1)
        stack.callback(plane.sync.close)
        with pytest.raises(BadRequest, match="keys are not configured"):
            plane.sync.register_peer("tcp://127.0.0.1:9", "b")


def test_without_keys_no_module_for_keys_is_loaded():
    program = (
        "import sys; import select_service.server.lifecycle; "
        "sys.exit(any(name in sys.modules for name in "
        "('zmq.auth', 'select_service.adapters.replicas.curve_peers')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
