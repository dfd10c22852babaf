"""Engine process that publishes a recording, and that can be killed.

Run as `python -m tests.process.recorded_engine RECORDING PORT REPLAY_PORT [PUBLIC SECRET KNOWN]`;
replay port 0 means none. With a key pair the sockets use CURVE, for one known listener. The process
reads commands from standard input and answers each with a line:

send N      publish the next N batches
lose N      number the next N batches and keep them for replays, but send none
trickle N   publish the next N batches with pauses; the line is answered before the first
await       wait for a subscriber
"""

import subprocess
import sys
import threading
import time

import msgspec

from indexer.sockets.curve_keypairs import CurveKeyPair
from tests.builders.launched_process import ROOT
from tests.indexer.events.test_recorded_groups import rows_of
from tests.process.fake_engine import FakeEngine

PAUSE_S = 0.004


def batches_of(recording):
    """Return the batches of a recording, without its prompts."""
    return [row["batch"] for row in rows_of(recording) if "batch" in row]


class RecordedEngine:
    """Handle of an engine process.

    published: number of batches of this life, including lost batches
    """

    def __init__(self, recording, port, replay_port, keys=()):
        """keys: own public and secret key, and the listener's public key, of CURVE sockets"""
        self.recording, self.port, self.replay_port = recording, port, replay_port
        self.batches, self.published = batches_of(recording), 0
        module = "tests.process.recorded_engine"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, recording, str(port), str(replay_port), *keys],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read_answer()

    @property
    def last_seq(self):
        return self.published - 1

    def order(self, verb, count=0):
        self._process.stdin.write(f"{verb} {count}\n")
        self._process.stdin.flush()
        self.published += count
        self._read_answer()

    def kill(self):
        """End the process as a crash does."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _read_answer(self):
        assert self._process.stdout.readline() == "done\n", "the engine process has ended"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self.kill()


class RecordedPublisher:
    """Engine inside this process."""

    def __init__(self, recording, port, replay_port, keys=()):
        self._payloads = iter([msgspec.msgpack.encode(batch) for batch in batches_of(recording)])
        places = {"port": port, "replay": replay_port > 0, "replay_port": replay_port}
        if keys:
            public, secret, known = (key.encode() for key in keys)
            places |= {"pair": CurveKeyPair(public, secret), "known": {known}}
        self._engine = FakeEngine(**places)

    def obey(self, verb, count):
        if verb == "await":
            self._engine.await_subscriber()
        elif verb == "trickle":
            threading.Thread(target=self._publish, args=(count, PAUSE_S), daemon=True).start()
        else:
            self._publish(count, is_lost=verb == "lose")

    def _publish(self, count, pause_s=0.0, *, is_lost=False):
        engine = self._engine
        for _ in range(count):
            seq, payload = engine.next_seq, next(self._payloads)
            engine.next_seq += 1
            engine.ring.append((seq, payload))
            if not is_lost:
                engine.send([b"kv", seq.to_bytes(8, "big"), payload])
            if pause_s:
                time.sleep(pause_s)


def main(recording, port, replay_port, *keys):
    publisher = RecordedPublisher(recording, int(port), int(replay_port), keys)
    print("done", flush=True)
    for line in sys.stdin:
        verb, count = line.split()
        publisher.obey(verb, int(count))
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
