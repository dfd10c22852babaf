"""Clients of a soak run: threads that book, report and end, and remember open reservations."""

import http.client
import itertools
import json
import random
import ssl
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.process.killed_engine_scenes import LIVES, prompts_of
from tests.proofs.soak_fleet import HYBRID_MODEL, PLAIN_MODEL, SoakReplica

HELD_MAX = 4
PAUSE_S = 0.2
CALL_S_MAX = 20.0
UNREACHABLE = (OSError, http.client.HTTPException, ssl.SSLError)


@dataclass
class HeldReservation:
    """Reservation that a client holds.

    workers: worker ids of the legs
    booked_by: replica that answered the booking
    booked_at: time of this answer, in s
    """

    name: str
    workers: tuple[int, ...]
    booked_by: SoakReplica
    booked_at: float
    is_pair: bool = False
    reports: int = 0


@dataclass
class EndedReservation:
    """Result of ending a reservation.

    ended_by: replica that ended the reservation; None means that no answering replica knew the id
    is_sure: whether each call of the end was answered
    """

    held: HeldReservation
    ended_at: float
    ended_by: SoakReplica | None = None
    is_sure: bool = True


class CallResult:
    """Answer of one operation.

    is_sure: whether all earlier attempts were answered, too
    """

    def __init__(self, status: int, body: Any, replica: SoakReplica, *, is_sure: bool) -> None:
        self.status, self.body, self.replica, self.is_sure = status, body, replica, is_sure


class KeptCaller:
    """Caller with one persistent connection per replica."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._connections = rng, dict[int, http.client.HTTPConnection]()

    def send(self, replica: SoakReplica, method: str, path: str, body: Any) -> tuple[int, Any]:
        access = replica._access
        if replica.port not in self._connections:
            self._connections[replica.port] = access.connection(replica.port, CALL_S_MAX)
        connection = self._connections[replica.port]
        headers = {**access.headers, "content-type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except UNREACHABLE:
            connection.close()
            del self._connections[replica.port]
            raise

    def call(
        self, replicas: list[SoakReplica], method: str, path: str, body: Any = None
    ) -> CallResult:
        """Return the answer of any replica, trying the replicas in random order."""
        order = self._rng.sample(replicas, len(replicas))
        until, is_sure = time.monotonic() + 60.0, True
        for replica in itertools.cycle(order):
            try:
                status, answer = self.send(replica, method, path, body)
                return CallResult(status, answer, replica, is_sure=is_sure)
            except UNREACHABLE:
                is_sure = False
                assert time.monotonic() < until, f"no replica answered {method} {path}"
                time.sleep(0.02)
        raise AssertionError

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


class SoakClients:
    """Threads that each hold a few reservations and can be paused between two operations.

    counts: numbers of operations and refusals by name
    faults: answers that a client must never see
    """

    def __init__(self, replicas: list[SoakReplica], count: int) -> None:
        self.replicas, self.counts, self.faults = replicas, Counter[str](), list[str]()
        self.held: dict[str, HeldReservation] = {}
        self.ended: dict[str, EndedReservation] = {}
        self.lock = threading.Lock()
        self._may_run, self._is_over = threading.Event(), threading.Event()
        self._idle = threading.Semaphore(0)
        self._prompts = [prompt for life in LIVES for prompt in prompts_of(life)]
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def pause(self) -> None:
        """Pause all clients, and return when no operation is in progress."""
        self._may_run.clear()
        for _ in self._threads:
            self._idle.acquire()

    def resume(self) -> None:
        self._may_run.set()

    def stop(self) -> None:
        """End paused or running clients without ending their reservations."""
        self._is_over.set()
        self._may_run.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        rng = random.Random(number)
        caller, own = KeptCaller(rng), list[HeldReservation]()
        for turn in itertools.count():
            if not self._may_run.is_set():
                self._idle.release()
                self._may_run.wait()
            if self._is_over.is_set():
                caller.close()
                return
            try:
                self._act(caller, rng, own, f"c{number}-{turn}")
            except Exception as error:
                self.note_fault(f"client {number}: {error!r}")
            time.sleep(rng.uniform(0.0, PAUSE_S))

    def note_fault(self, text: str) -> None:
        with self.lock:
            self.faults.append(text)

    def _count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def _act(
        self, caller: KeptCaller, rng: random.Random, own: list[HeldReservation], name: str
    ) -> None:
        own[:] = [each for each in own if each.name in self.held]
        if len(own) < HELD_MAX and (not own or rng.random() < 0.4):
            held = self._book(caller, rng, name)
            if held is not None:
                own.append(held)
        elif rng.random() < 0.5:
            self._report(caller, rng.choice(own))
        else:
            self.end(caller, own.pop(rng.randrange(len(own))))

    def _book(self, caller: KeptCaller, rng: random.Random, name: str) -> HeldReservation | None:
        is_pair = rng.random() < 0.4
        body: dict[str, Any] = {"reservation_id": name, "repeat": True}
        if is_pair:
            tokens = [rng.randrange(100) for _ in range(rng.choice([40, 400]))]
            body |= {
                "model_name": PLAIN_MODEL,
                "token_ids": tokens,
                "local": rng.choice(["auto", "never"]),
            }
            path = "/select_pair_and_reserve"
        else:
            body |= {"model_name": HYBRID_MODEL, "token_ids": rng.choice(self._prompts)}
            body |= {"session_id": f"s{rng.randrange(200)}"}
            path = "/select_and_reserve"
        result = caller.call(self.replicas, "POST", path, body)
        if result.status != 200:
            self._count(f"refused {result.status}")
            if result.status != 503:
                self.note_fault(f"booking {name}: {result.status} {result.body}")
            # An attempt without an answer may have booked the id before this refusal.
            if not result.is_sure:
                caller.call(self.replicas, "DELETE", f"/reservations/{name}")
            return None
        legs = result.body["legs"] if is_pair else [result.body]
        workers = tuple(leg["worker_id"] for leg in legs)
        held = HeldReservation(name, workers, result.replica, time.monotonic(), is_pair)
        with self.lock:
            self.held[name] = held
        self._count("pairs" if is_pair else "booked")
        return held

    def _report(self, caller: KeptCaller, held: HeldReservation) -> None:
        verbs = ["prefill_complete", "first_token" if held.is_pair else "output_block", "renew"]
        verb = verbs[min(held.reports, 2)]
        held.reports += 1
        path = f"/reservations/{held.name}/{verb}"
        result = caller.call(self.replicas, "POST", path)
        if result.status not in (200, 404):
            self.note_fault(f"{verb} of {held.name}: {result.status} {result.body}")
        self._count("reports")

    def end(self, caller: KeptCaller, held: HeldReservation) -> None:
        """End a reservation at one replica; try the other replicas while none knows the id."""
        with self.lock:
            self.held.pop(held.name, None)
        ended = EndedReservation(held, time.monotonic())
        for replica in caller._rng.sample(self.replicas, len(self.replicas)):
            path = f"/reservations/{held.name}"
            try:
                status, _ = caller.send(replica, "DELETE", path, None)
            except UNREACHABLE:
                ended.is_sure = False
                continue
            if status == 200:
                ended.ended_by = replica
                break
        ended.ended_at = time.monotonic()
        with self.lock:
            self.ended[held.name] = ended
        self._count("ended")
