"""Tests of a server's handshakes: counts, bounds, and changes of the context."""

import asyncio
import gc
import socket
import ssl

import pytest
import uvloop

from select_service.net.tls.server_handshakes import HandshakeContext
from select_service.net.tls.ssl_contexts import server_context
from select_service.net.tls.tls_paths import CertificatePair, ServerTlsPaths
from tests.builders.certificates import authority, trusting_context
from tests.builders.polling import eventually_on_loop

SHORT_S = 0.2
MANY = 50


def context(issued):
    return server_context(ServerTlsPaths(CertificatePair(*issued))).context


async def served(story):
    """Run `story(handshakes, port)` next to a server that does nothing."""
    handshakes = HandshakeContext(context(authority().issue()))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        asyncio.Protocol, "127.0.0.1", 0, ssl=handshakes, ssl_handshake_timeout=SHORT_S
    )
    try:
        await story(handshakes, server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def connect(port):
    """Return the certificate that the server presents."""
    trust = trusting_context(authority().file)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
    shown = writer.get_extra_info("ssl_object").getpeercert()
    writer.close()
    return shown


def mistrust(port):
    """Reject the certificate with an alert, which clients of event loops do not send."""
    trust = trusting_context(authority("stranger").file)
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        trust.wrap_socket(plain, server_hostname="localhost"),
    ):
        raise AssertionError("the certificate is believed")


def test_all_ends_are_counted_and_none_is_kept():
    """Each end leaves nothing to the garbage collector on uvloop, on which the service runs."""

    async def story(handshakes, port):
        for _ in range(MANY):
            await connect(port)
        await eventually_on_loop(lambda: handshakes.current_counts() == (MANY, 0, 0, 0, 0))
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(mistrust, port)
        await eventually_on_loop(lambda: handshakes.current_counts() == (MANY, 1, 0, 0, 0))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await reader.read() == b""
        await eventually_on_loop(lambda: handshakes.current_counts() == (MANY, 2, 0, 0, 0))
        writer.close()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MANY)]
        await eventually_on_loop(lambda: handshakes.open_count)
        for reader, writer in silent:
            assert await reader.read() == b""
            writer.close()
        await eventually_on_loop(lambda: handshakes.current_counts() == (MANY, 2, 0, MANY, 0))

    gc.disable()  # garbage would count as open handshakes
    try:
        uvloop.run(served(story))
    finally:
        gc.enable()


def test_none_begins_while_it_is_full():
    async def story(handshakes, port):
        handshakes.is_full = lambda: True
        with pytest.raises(OSError):  # noqa: PT011  reset, or closed
            await connect(port)
        assert handshakes.current_counts() == (0, 0, 1, 0, 0)
        handshakes.is_full = lambda: False
        await connect(port)
        await eventually_on_loop(lambda: handshakes.current_counts().completed == 1)

    uvloop.run(served(story))


def test_new_connections_get_the_new_certificate_and_old_ones_stay():
    async def story(handshakes, port):
        trust = trusting_context(authority().file)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        old = writer.get_extra_info("ssl_object").getpeercert()
        handshakes.set_context(context(authority().issue()))
        assert (await connect(port))["serialNumber"] != old["serialNumber"]
        writer.write(b"still open")
        await writer.drain()
        assert not reader.at_eof()
        writer.close()

    uvloop.run(served(story))
