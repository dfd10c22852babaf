"""Switch of a network namespace that delays, loses and drops frames between its ports.

Run as `python -m scripts.netns_replicas.packet_switch PORT...`; each line of the standard input is
the JSON of a `LinkFault` and replaces the fault of one direction. A switch in Python needs neither
tc nor iptables, which not every kernel has, and can cut one direction alone.
"""

import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import selectors
import socket
import struct
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

ETH_P_ALL, PACKET_OUTGOING, FRAME_BYTES_MAX = 3, 4, 65_536
QUEUED_MAX = 100_000
SIOCETHTOOL, SET_TX_CHECKSUM = 0x8946, 0x17


@dataclass(frozen=True)
class LinkFault:
    """Fault of the direction from one port to another.

    loss: share of lost frames;  delay_s: least delay;  jitter_s: further delay, at random
    """

    sender: int
    receiver: int
    loss: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0


class PacketSwitch:
    """Switch that forwards every frame to all other ports; interfaces ignore frames of others."""

    def __init__(self, ports: list[str]) -> None:
        self._sockets = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW) for _ in ports]
        for each, port in zip(self._sockets, ports, strict=True):
            each.bind((port, ETH_P_ALL))
            each.setblocking(False)
        self._faults: dict[tuple[int, int], LinkFault] = {}
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._numbers, self._rng = itertools.count(), random.Random(1)

    def run(self) -> None:
        """Forward until the standard input ends."""
        ready = selectors.DefaultSelector()
        for number, each in enumerate(self._sockets):
            ready.register(each, selectors.EVENT_READ, number)
        ready.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
        commands = b""
        while True:
            due_s = self._waiting[0][0] - time.monotonic() if self._waiting else 1.0
            for key, _ in ready.select(max(0.0, due_s)):
                if key.data is not None:
                    self._receive(key.data)
                    continue
                read = os.read(sys.stdin.fileno(), FRAME_BYTES_MAX)
                if not read:
                    return
                *lines, commands = (commands + read).split(b"\n")
                for line in lines:
                    fault = LinkFault(**json.loads(line))
                    self._faults[fault.sender, fault.receiver] = fault
            self._send_due()

    def _receive(self, sender: int) -> None:
        try:
            frame, about = self._sockets[sender].recvfrom(FRAME_BYTES_MAX)
        except OSError:  # the port is down
            return
        # A packet socket also receives the frames that its own interface sends.
        if about[2] == PACKET_OUTGOING:
            return
        for receiver in range(len(self._sockets)):
            fault = self._faults.get((sender, receiver), LinkFault(sender, receiver))
            if receiver == sender or self._rng.random() < fault.loss:
                continue
            due = time.monotonic() + fault.delay_s + fault.jitter_s * self._rng.random()
            # Beyond the limit frames are lost, as in a real switch.
            if len(self._waiting) < QUEUED_MAX:
                heapq.heappush(self._waiting, (due, next(self._numbers), receiver, frame))

    def _send_due(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, receiver, frame = heapq.heappop(self._waiting)
            try:
                self._sockets[receiver].send(frame)
            except OSError:  # a full queue loses frames, as in a real switch
                continue


class SwitchProcess:
    """Handle of a running switch."""

    def __init__(self, ports: list[str]) -> None:
        command = [sys.executable, "-m", "scripts.netns_replicas.packet_switch", *ports]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def set_fault(self, fault: LinkFault) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(fault)).encode() + b"\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def checksum_in_software(interface: str) -> None:
    """Make the kernel compute checksums before frames leave: a raw socket does not."""
    value = ctypes.create_string_buffer(struct.pack("II", SET_TX_CHECKSUM, 0))
    request = struct.pack("16sP", interface.encode(), ctypes.addressof(value))
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)


def main() -> None:
    if sys.argv[1] == "--software-checksums":
        checksum_in_software(sys.argv[2])
    else:
        PacketSwitch(sys.argv[1:]).run()


if __name__ == "__main__":
    main()
