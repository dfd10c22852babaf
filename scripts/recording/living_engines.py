"""Ranks of a real engine, without GPU and model, that live, are killed, and live again.

    living_engines.py vllm|sglang

Run by `scripts/bench/engine_restarts.py` with the Python of an environment that has the engine.
Cache, hashing and the event publisher with its replay server are the engine's own
(`living_vllm.py`, `living_sglang.py`).  Importing them takes long, so this process does it once,
and every life of the engines is a child that it forks.

    stdin:  {"life": seed, "control": address, "requests": n, "ports": [[events, replay], ...]}
    stdout: the process id of the life, once its requests are done and its ports are bound

A life answers on its control address (REP, JSON): {"requests": n} runs so many on every rank,
{"stream": true} runs one after the other until told otherwise, {"held": true} says of every rank
how many leading blocks of each prompt are in its cache.
"""

import importlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import zmq

sys.path.insert(0, str(Path(__file__).parents[1]))

from recording.living import prompts

STREAM_PAUSE_S = 0.02


class Life:
    """All ranks from one start of the engines to their death."""

    def __init__(self, make_rank: Any, order: dict[str, Any]) -> None:
        self._ranks = [make_rank(order["life"] * 1000 + i) for i in range(len(order["ports"]))]
        self._lock = threading.Lock()
        self._streams = False
        for rank, (events, replay) in zip(self._ranks, order["ports"], strict=True):
            rank.bind(events, replay)
        self._run(order["requests"])
        context: zmq.Context[Any] = zmq.Context.instance()
        self._control = context.socket(zmq.REP)
        self._control.bind(order["control"])
        threading.Thread(target=self._stream, daemon=True).start()

    def serve(self) -> None:
        while True:
            order = json.loads(self._control.recv())
            answer: Any = "done"
            with self._lock:
                self._streams = order.get("stream", self._streams)
                self._run(order.get("requests", 0))
                if "held" in order:
                    answer = [rank.held_leading() for rank in self._ranks]
            self._control.send_string(json.dumps(answer))

    def _run(self, requests: int) -> None:
        for _ in range(requests):
            for rank in self._ranks:
                rank.run_one()

    def _stream(self) -> None:
        while True:
            time.sleep(STREAM_PAUSE_S)
            with self._lock:
                if self._streams:
                    self._run(1)


def main() -> None:
    engine = importlib.import_module(f"recording.living_{sys.argv[1]}")
    print(json.dumps(prompts()), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child:
            threading.Thread(target=os.waitpid, args=(child, 0), daemon=True).start()
            continue
        life = Life(engine.Rank, order)
        print(os.getpid(), flush=True)
        life.serve()


if __name__ == "__main__":
    main()
