"""How fast KV events get from the wire into the index, and what that costs.

    python scripts/bench/ingest.py burst [--blocks 64] [--messages 10480]
    python scripts/bench/ingest.py steady [--blocks 64] [--rate 2000] [--seconds 5]
    python scripts/bench/ingest.py gil [--blocks 64] [--rate 2000] [--seconds 3]

The publisher is a process of its own, the receiving side is `Ingest` with one thread in this
process.  CPU is that of this whole process, libzmq's threads included.
burst: all messages at once into a cold index; wall time from the first send to the last block.
steady: CPU per message at a moderate rate, where waking up is part of the price.
gil: an asyncio loop answers requests after 50 us of Python each; time from request to answer, seen
from another process, while events arrive, by sys.setswitchinterval.
"""

import argparse
import asyncio
import gc
import json
import resource
import socket
import subprocess
import sys
import time

import msgspec
import numpy as np
import zmq

from indexer.events.kv_source import KvSource
from indexer.index.prefix_index import PrefixIndex
from indexer.sockets.ingest import Ingest
from indexer.sockets.listener_status import ListenerStatus

BLOCK_SIZE = 16
CHAIN_MESSAGES = 16
"""Messages that continue one prompt before the next prompt begins."""


def messages(n_messages: int, blocks: int) -> list[bytes]:
    encode = msgspec.msgpack.encode
    rng = np.random.default_rng(1)
    out, parent = [], None
    for n in range(n_messages):
        hashes = rng.integers(0, 2**64, blocks, np.uint64, endpoint=False).tolist()
        if n % CHAIN_MESSAGES == 0:
            parent = None
        tokens = rng.integers(0, 128_000, blocks * BLOCK_SIZE).tolist()
        event = ["BlockStored", hashes, parent, tokens, BLOCK_SIZE, None, "GPU"]
        out.append(encode([1.5, [event], 0]))
        parent = hashes[-1]
    return out


def publish(n_messages: int, blocks: int, rate: float) -> None:
    """The publisher process: prints its endpoint, starts when told, ends when its input ends."""
    pub = zmq.Context().socket(zmq.XPUB)
    pub.set_hwm(0)
    pub.linger = 0
    port = pub.bind_to_random_port("tcp://127.0.0.1")
    payloads = messages(n_messages, blocks)
    print(port, flush=True)
    pub.recv()
    print("subscribed", flush=True)
    sys.stdin.readline()
    begin = time.perf_counter()
    for seq, payload in enumerate(payloads):
        if rate and seq % 20 == 0:
            time.sleep(max(0.0, begin + seq / rate - time.perf_counter()))
        pub.send_multipart([b"", seq.to_bytes(8, "big"), payload])
    print(time.perf_counter() - begin, flush=True)
    sys.stdin.readline()


class Publisher:
    def __init__(self, n_messages: int, blocks: int, rate: float = 0) -> None:
        what = ["publish", "--messages", n_messages, "--blocks", blocks, "--rate", rate]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *map(str, what)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.endpoint = f"tcp://127.0.0.1:{self.line()}"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.go()
        self.process.wait()


class Receiver:
    """An Ingest with one listener."""

    def __init__(self, endpoint: str, blocks_max: int) -> None:
        self.index = PrefixIndex(blocks_max)
        self.ingest = Ingest(threads=1)
        writer = self.index.open_slot()
        source = KvSource(1, 0, endpoint, None, BLOCK_SIZE, False, True, {0: writer})
        self.ingest.follow({1: [source]})

    def done(self, n_messages: int) -> bool:
        return self.status().batches >= n_messages

    def status(self) -> ListenerStatus:
        found = self.ingest.status_of((1, 0))
        assert found is not None
        return found

    def check(self, n_messages: int, blocks: int) -> None:
        status = self.status()
        assert (status.gaps, status.decode_errors) == (0, 0), status
        assert status.stored_blocks == n_messages * blocks, status
        assert self.ingest.failure() is None


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(n_messages: int, blocks: int, rate: float = 0) -> tuple[float, float, float]:
    """(wall s, CPU s, publisher's s)"""
    publisher = Publisher(n_messages, blocks, rate)
    receiver = Receiver(publisher.endpoint, n_messages * blocks * 5 // 4 + 1000)
    assert publisher.line() == "subscribed"
    gc.collect()
    cpu, wall = cpu_s(), time.perf_counter()
    publisher.go()
    while not receiver.done(n_messages):
        time.sleep(0.02 if rate else 0.005)
    wall, cpu = time.perf_counter() - wall, cpu_s() - cpu
    receiver.check(n_messages, blocks)
    sent = float(publisher.line())
    receiver.ingest.close()
    publisher.close()
    return wall, cpu, sent


def burst(args: argparse.Namespace) -> None:
    for _ in range(args.repeats):
        wall, cpu, sent = run(args.messages, args.blocks)
        n_blocks = args.messages * args.blocks
        report(
            blocks_per_s=round(n_blocks / wall),
            cpu_us_per_message=round(cpu / args.messages * 1e6, 1),
            cpu_ns_per_block=round(cpu / n_blocks * 1e9),
            wall_s=round(wall, 3),
            publisher_s=round(sent, 3),
        )


def steady(args: argparse.Namespace) -> None:
    for _ in range(args.repeats):
        n_messages = int(args.rate * args.seconds)
        wall, cpu, _ = run(n_messages, args.blocks, args.rate)
        report(
            rate=args.rate,
            wall_s=round(wall, 2),
            cpu_us_per_message=round(cpu / n_messages * 1e6, 1),
        )


class Echo(asyncio.Protocol):
    """Answers each request after 50 us of Python."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        until = time.thread_time() + 50e-6
        while time.thread_time() < until:
            pass
        self.transport.write(data)


async def answer_pings(seconds: float) -> str:
    """What the ping process says about the time from request to answer."""
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    ping = await asyncio.create_subprocess_exec(
        *[sys.executable, __file__, "ping", "--port", str(port), "--seconds", str(seconds)],
        stdout=subprocess.PIPE,
    )
    said, _ = await ping.communicate()
    server.close()
    return said.decode().strip()


def ping(args: argparse.Namespace) -> None:
    with socket.create_connection(("127.0.0.1", args.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waits = []
        until = time.perf_counter() + args.seconds
        while (begin := time.perf_counter()) < until:
            connection.sendall(b"x" * 100)
            connection.recv(100)
            waits.append(time.perf_counter() - begin)
            time.sleep(200e-6)
    values = np.percentile(np.array(waits) * 1e6, [50, 90, 99, 99.9]).round().astype(int)
    names = ("p50_us", "p90_us", "p99_us", "p999_us")
    report(n=len(waits), **dict(zip(names, values.tolist(), strict=True)))


def gil(args: argparse.Namespace) -> None:
    print("no events:", asyncio.run(answer_pings(args.seconds)), flush=True)
    n_messages = int(args.rate * (args.seconds + 2))
    for interval in (5e-3, 1e-3, 5e-4, 2e-4, 1e-4, 5e-5, 2e-5):
        sys.setswitchinterval(interval)
        publisher = Publisher(n_messages, args.blocks, args.rate)
        receiver = Receiver(publisher.endpoint, n_messages * args.blocks * 5 // 4 + 1000)
        assert publisher.line() == "subscribed"
        cpu = cpu_s()
        publisher.go()
        said = asyncio.run(answer_pings(args.seconds))
        cpu = (cpu_s() - cpu) / args.seconds
        batches = receiver.status().batches
        print(f"{interval * 1e6:.0f} us, CPU {cpu:.0%}, {batches} batches:", said, flush=True)
        publisher.line()
        while not receiver.done(n_messages):
            time.sleep(0.02)
        receiver.ingest.close()
        publisher.close()


def report(**values: float) -> None:
    print(json.dumps(values), flush=True)


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("what", choices=["burst", "steady", "gil", "ping", "publish"])
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--messages", type=int, default=10_480)
    parser.add_argument("--rate", type=float, default=2000)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--port", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if args.what == "publish":
        publish(args.messages, args.blocks, args.rate)
    else:
        {"burst": burst, "steady": steady, "gil": gil, "ping": ping}[args.what](args)


if __name__ == "__main__":
    main()
