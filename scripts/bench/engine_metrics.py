"""What reading the engines' own metrics costs the event loop: CPU per scrape.

    python scripts/bench/engine_metrics.py [--scrapes 2000]

`text` is the reading of a recorded text alone, `scrape` all of it: request, answer and reading,
over a kept connection, on uvloop.  The server is another process.  Microseconds of CPU of this
process, the best of five rounds.
"""

import argparse
import lzma
import multiprocessing
import socket
import time
from pathlib import Path

import uvloop

from indexer.sockets.names import Names
from select_service.core.engines.engine_load import EngineTarget
from select_service.core.engines.engine_text import reading_steps, readings_of
from select_service.edge.engine_metrics import ACCEPT, BODY_BYTES_MAX
from select_service.edge.http_client import HttpClient
from select_service.outgoing.reading_budget import reading_budget

TEXTS = Path(__file__).parents[2] / "tests" / "recordings" / "metrics"
NAMES = ("vllm-0.33.0-1", "vllm-0.33.0-2", "sglang-0.5.23-1", "sglang-0.5.23-2")
ROUNDS = 5
TIMEOUT_S = 10.0


def serve(listener, body):
    """Answers every request on one connection at a time with the same body."""
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    while True:
        connection, _ = listener.accept()
        with connection:
            while connection.recv(65536):
                connection.sendall(head + body)


def text_us(text, dp_ranks, count):
    started = time.process_time()
    for _ in range(count):
        readings_of(text, dp_ranks)
    return (time.process_time() - started) / count * 1e6


async def scrape_us(target, count):
    http = HttpClient(Names())

    async def scrape():
        text = await http.body(
            target.url, accept=ACCEPT, bytes_max=BODY_BYTES_MAX, timeout_s=TIMEOUT_S
        )
        return await reading_budget().result_of(reading_steps(text, target.dp_ranks))

    await scrape()
    started = time.process_time()
    for _ in range(count):
        await scrape()
    spent_s = time.process_time() - started
    await http.close()
    return spent_s / count * 1e6


def measure(name, count):
    """Bytes of the text, then both figures."""
    text = lzma.decompress((TEXTS / f"{name}.txt.xz").read_bytes())
    dp_ranks = tuple(range(int(name[-1])))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = multiprocessing.Process(target=serve, args=(listener, text), daemon=True)
        server.start()
        target = EngineTarget(1, f"http://127.0.0.1:{listener.getsockname()[1]}/", dp_ranks)
        alone = min(text_us(text, dp_ranks, count) for _ in range(ROUNDS))
        whole = min(uvloop.run(scrape_us(target, count)) for _ in range(ROUNDS))
        server.kill()
        server.join()
    return len(text), alone, whole


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scrapes", type=int, default=2000, help="of every text, in all rounds")
    chosen = parser.parse_args()
    print(f"{'text':16} {'bytes':>7} {'text us':>8} {'scrape us':>10}")
    for name in NAMES:
        size, alone, whole = measure(name, chosen.scrapes // ROUNDS)
        print(f"{name:16} {size:7} {alone:8.0f} {whole:10.0f}")


if __name__ == "__main__":
    main()
