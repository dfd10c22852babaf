"""Tests of reading sockets: events that end connections, and events that do not."""

import os
import socket

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from indexer.sockets.socket_options import UNCONFIRMED_MS_MAX, QueueLimits, reading_socket
from tests.builders.polling import eventually
from tests.builders.running import run_script

SLOW_READER = """
import time, zmq
from zmq.utils.monitor import recv_monitor_message
from indexer.sockets import socket_options as options

options.HEARTBEAT_MS, options.UNCONFIRMED_MS_MAX = 20, 60
options.RECONNECT_MS = options.RECONNECT_MS_MAX = 10
with zmq.Context() as context:
    publisher = context.socket(zmq.XPUB)
    publisher.set_hwm(0)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    endpoint = f"tcp://127.0.0.1:{port}"
    reader = options.reading_socket(context, zmq.SUB, endpoint, options.QueueLimits(4, 1 << 20))
    reader.setsockopt(zmq.SUBSCRIBE, b"")
    reader.connect(endpoint)
    assert publisher.recv() == b"\\x01"
    for number in range(1000):
        publisher.send(number.to_bytes(8, "big") + bytes(50_000))
    time.sleep(0.5)
    came = [int.from_bytes(reader.recv()[:8], "big") for _ in range(1000)]
    assert came == list(range(1000)), came
    publisher.close(linger=0)
    reader.close()
print("well")
"""


def test_a_reader_that_is_slower_than_heartbeats_goes_on_where_it_was():
    """The reader loses its connection and the process aborts under libzmq's own time-outs."""
    ended = run_script(SLOW_READER)
    assert ended[:2] == (0, "well\n"), ended


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="of Linux")
def test_the_kernel_ends_unacknowledged_connections():
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        endpoint = f"tcp://127.0.0.1:{port}"
        with reading_socket(context, zmq.SUB, endpoint, QueueLimits(4, 100)) as reader:
            monitor = reader.get_monitor_socket(zmq.EVENT_CONNECTED)
            reader.connect(endpoint)
            eventually(lambda: monitor.poll(0))
            descriptor = recv_monitor_message(monitor)["value"]
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                option = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert connection.getsockopt(*option) == UNCONFIRMED_MS_MAX
            reader.disable_monitor()
            monitor.close()
