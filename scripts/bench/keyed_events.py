"""What CURVE costs a stream of KV events: batches a second of one ingest thread, and its CPU.

    python scripts/bench/keyed_events.py [--batches 40000] [--rounds 3]

A publisher in another process makes all batches, of 8 blocks each, and sends them at once when the
listener has subscribed; plain and over CURVE by turns.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from indexer.index.prefix_index import PrefixIndex  # noqa: E402
from indexer.sockets.curve import CurvePair, new_pair  # noqa: E402
from indexer.sockets.ingest import Ingest  # noqa: E402
from tests.process.ingest_scenes import a_source, follow, status  # noqa: E402

BATCH_BLOCKS = 8
LOOK_S = 0.0005

PUBLISHER = """
import sys, zmq
from tests.process.fake_engine import Chain, encode
n, blocks, *secret = sys.argv[1:]
n, blocks, chain = int(n), int(blocks), Chain()
socket = zmq.Context().socket(zmq.XPUB)
socket.set_hwm(0)
if secret:
    socket.curve_server, socket.curve_secretkey = True, secret[0].encode()
payloads = [encode(chain.stored(blocks * i, blocks)) for i in range(n)]
print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
socket.recv()
for i, payload in enumerate(payloads):
    socket.send_multipart([b"kv", i.to_bytes(8, "big"), payload])
sys.stdin.read()
"""


class Figures(NamedTuple):
    """per_s: batches; cpu_us: of this process for one of them"""

    per_s: float
    cpu_us: float


def measured(batches: int, pair: CurvePair | None) -> Figures:
    """pair: of the publisher; None: plain"""
    secret = [] if pair is None else [pair.secret.decode()]
    command = [sys.executable, "-c", PUBLISHER, str(batches), str(BATCH_BLOCKS), *secret]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT) as publisher:
        assert publisher.stdout is not None
        port = int(publisher.stdout.readline())
        index, ingest = PrefixIndex(2 * batches * BATCH_BLOCKS), Ingest(threads=1)
        key = None if pair is None else pair.public.decode()
        follow(ingest, [a_source(f"tcp://127.0.0.1:{port}", index.open_slot(), key=key)])
        while not (first := status(ingest).batches):
            time.sleep(LOOK_S)
        begin, cpu_begin = time.perf_counter(), time.process_time()
        while status(ingest).batches < batches:
            time.sleep(LOOK_S)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
        ingest.close()
        publisher.kill()
    n = batches - first
    return Figures(n / seconds, 1e6 * cpu / n)


def main() -> None:
    parser = argparse.ArgumentParser(description="KV events plain and over CURVE")
    parser.add_argument("--batches", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for _ in range(options.rounds):
        for name, pair in (("plain", None), ("CURVE", new_pair())):
            found = measured(options.batches, pair)
            print(f"{name}: {found.per_s:.0f} batches/s, {found.cpu_us:.1f} us CPU a batch")


if __name__ == "__main__":
    main()
