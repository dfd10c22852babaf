"""Fleet of a soak run: replicas with all features on, and engines that can be killed."""

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from indexer.sockets.curve_keypairs import new_key_pair
from tests.builders.launched_process import free_port
from tests.builders.served_engines import ServedEngines
from tests.builders.toy_engine import ToyEngine
from tests.indexer.events.test_recorded_groups import rows_of
from tests.models.recorded_cache import RecordedCache
from tests.process.access import Secured
from tests.process.killed_engine_scenes import BLOCK_SIZE, LIVES
from tests.process.recorded_engine import RecordedEngine
from tests.process.replica_processes import Replica

REPLICAS = 3
HYBRID, PREFILLS, DECODES, SPARE = (1, 2, 3), (11, 12, 13), (21, 22, 23), 31
PLAIN_MODEL, HYBRID_MODEL = "pairs", "hybrid"
FLAGS = (
    *("--health-checks", "on", "--health-interval-secs", "10", "--degradation", "observe"),
    *("--breaker-connect-secs", "1", "--health-slow-start-secs", "1"),
    *("--shadow-policy", "reference", "--reservation-ttl-secs", "900", "--decisions", "512"),
    *("--snapshot-interval-secs", "30", "--log-level", "warning"),
)


class SoakReplica(Replica):
    """Replica with KV events, its own files and the addresses of the other replicas.

    life: number of the current process, 1 for the first, 2 after a kill, and so on
    """

    def __init__(self, folder: Path, *flags: str, access: Secured) -> None:
        files = {
            "--state-path": "state",
            "--snapshot-path": "index",
            "--health-state": "references",
            "--decision-log": "decisions.jsonl",
            "--audit-log": "audit.jsonl",
        }
        folder.mkdir()
        places = [word for flag, name in files.items() for word in (flag, str(folder / name))]
        super().__init__(*FLAGS, *places, *flags, access=access)
        for name in ("DYN_USE_KV_EVENTS", "SELECT_SERVICE_NO_ASSUMED_INDEX"):
            self._environment.pop(name)
        self.life = 0

    def join(self, others: list["SoakReplica"]) -> None:
        """Add the addresses of the other replicas to the command, before the first start."""
        peers = ",".join(other.endpoint for other in others)
        urls = ",".join(other.url for other in others)
        self._command = (*self._command, "--replica-sync-peers", peers, "--indexer-peers", urls)

    def start(self) -> None:
        self.life += 1
        super().start()

    def memory_mib(self) -> float:
        """Return the resident memory, in MiB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) / 1024

    def log_tail(self) -> str:
        return self._launched.log_tail()


class Overlap(NamedTuple):
    """Compared value: the service's certainty, and the tokens by the service and by the engine."""

    certainty: str
    tokens: int
    truth: int


class HybridEngine:
    """Rank with a dense and a state group that replays recordings of vLLM in turn."""

    def __init__(self, keys: tuple[str, str, str]) -> None:
        self.port, self.replay_port, self._keys, self._lives = free_port(), free_port(), keys, 0
        self._begin()

    def _begin(self) -> None:
        recording = LIVES[self._lives % len(LIVES)]
        self._lives += 1
        self.process = RecordedEngine(recording, self.port, self.replay_port, self._keys)
        self.cache, self._applied = RecordedCache(next(rows_of(recording))), 0

    def publish(self, verb: str, count: int) -> None:
        """Publish or lose the next batches, up to the end of the recording."""
        engine = self.process
        count = min(count, len(engine.batches) - engine.published)
        if count > 0:
            engine.order(verb, count)

    def truth(self, prompt: list[int]) -> int:
        """Return the tokens of a prompt that the engine would reuse now."""
        for batch in self.process.batches[self._applied : self.process.published]:
            self.cache.apply(batch[1])
        self._applied = self.process.published
        return int(self.cache.reusable(prompt))

    def kill(self) -> None:
        self.process.kill()

    def restart(self) -> None:
        self._begin()


class SoakFleet:
    """Replicas and engines; leaving the `with` block ends all of them."""

    def __init__(self, folder: Path) -> None:
        access = Secured(folder)
        engine_pair, listener = new_key_pair(), new_key_pair()
        listener_file = folder / "listener.key"
        with os.fdopen(os.open(listener_file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(listener.secret + b"\n")
        self.engine_key = engine_pair.public.decode()
        keys = (self.engine_key, engine_pair.secret.decode(), listener.public.decode())
        self._workers_file = folder / "workers.yaml"
        self.http = ServedEngines()
        self.http.__enter__()
        self.hybrid = {worker_id: HybridEngine(keys) for worker_id in HYBRID}
        self._ports = {each: free_port() for each in (*HYBRID, *PREFILLS, *DECODES, SPARE)}
        self._edits = 0
        for worker_id in self._ports:
            self._serve(worker_id)
        self.write_workers()
        flags = ("--workers-file", str(self._workers_file))
        flags += ("--engine-curve-key-file", str(listener_file))
        self.replicas = [
            SoakReplica(folder / f"replica-{n}", *flags, access=access) for n in range(REPLICAS)
        ]
        for replica in self.replicas:
            replica.join([other for other in self.replicas if other is not replica])

    def __enter__(self) -> "SoakFleet":
        try:
            for replica in self.replicas:
                replica.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for replica in self.replicas:
            if replica.life:
                replica.kill()
        for engine in self.hybrid.values():
            engine.process.__exit__()
        self.http.__exit__()

    @property
    def elder(self) -> SoakReplica:
        """Replica that is never killed."""
        return self.replicas[0]

    # Engines

    def _serve(self, worker_id: int) -> None:
        self.http.serve(ToyEngine(), self._ports[worker_id])

    def kill_engine(self, worker_id: int) -> None:
        self.http.crash(self._endpoint(worker_id))
        if worker_id in self.hybrid:
            self.hybrid[worker_id].kill()

    def restart_engine(self, worker_id: int) -> None:
        if worker_id in self.hybrid:
            self.hybrid[worker_id].restart()
        self._serve(worker_id)

    def _endpoint(self, worker_id: int) -> str:
        return f"http://127.0.0.1:{self._ports[worker_id]}"

    # Discovery

    def write_workers(self, *, has_spare: bool = True) -> None:
        """Write the workers file, each time with another value of one field."""
        self._edits += 1
        workers = [self._hybrid_record(each) for each in HYBRID]
        workers += [self._plain_record(each, "prefill") for each in PREFILLS]
        workers += [self._plain_record(each, "decode") for each in DECODES]
        if has_spare:
            workers.append(self._plain_record(SPARE, "aggregated"))
        # Discovery has to apply a changed field as an edit, without a new worker.
        workers[3]["max_num_batched_tokens"] = 8192 + self._edits % 7
        new = self._workers_file.with_suffix(".new")
        new.write_text(yaml.safe_dump({"workers": workers}))
        shutil.move(new, self._workers_file)

    def _hybrid_record(self, worker_id: int) -> dict[str, Any]:
        engine = self.hybrid[worker_id]
        return {
            "worker_id": worker_id,
            "model_name": HYBRID_MODEL,
            "endpoint": self._endpoint(worker_id),
            "block_size": BLOCK_SIZE,
            "kv_events_endpoint": f"tcp://127.0.0.1:{engine.port}",
            "replay_endpoint": f"tcp://127.0.0.1:{engine.replay_port}",
            "curve_server_key": self.engine_key,
        }

    def _plain_record(self, worker_id: int, role: str) -> dict[str, Any]:
        link = {"host": f"h{worker_id % 3}", "link_gbps": 100.0, "bytes_per_token": 131072.0}
        return {
            "worker_id": worker_id,
            "model_name": PLAIN_MODEL,
            "endpoint": self._endpoint(worker_id),
            "block_size": 16,
            "role": role,
            "index": "assumed",
            "total_kv_blocks": 512,
            "kv_transfer": link,
            "prefill_tokens_per_s": 33_000.0,
            "max_num_batched_tokens": 8192,
        }
