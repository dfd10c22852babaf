"""Scene of a history: clients book, report and end at all replicas while these are disturbed.

Replicas are killed, cut off, cut off in one direction, slowed down, and lose packets. Clients reach
every replica that runs. At the end all faults are healed, and the recorded history is checked
against the guarantees (guarantees.py).
"""

import http.client
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from scripts.netns_replicas.guarantees import AGREE_S_MAX, Violation, check_history
from scripts.netns_replicas.history import (
    FaultWindow,
    HeldRow,
    History,
    Kind,
    Operation,
    ReplicaView,
    SettledState,
    ShownLoad,
)
from scripts.netns_replicas.namespaced_replicas import (
    NET,
    NUMBERS,
    START_S_MAX,
    booking_of,
    call,
    is_up,
    kill_selector,
    open_switch,
    register_workers,
    set_link,
    start_selector,
    wait_until,
)
from scripts.netns_replicas.packet_switch import LinkFault, SwitchProcess

WORKERS = [1, 2, 3]
CLIENTS, HELD_MAX, PAUSE_S = 6, 12, 0.05
KEPT_SHARE, CONTESTED_SHARE, LATE_READ_SHARE = 0.2, 0.05, 0.3
FAULT_S, CALM_S = (3.0, 8.0), (1.0, 4.0)
FLAP_S = 0.3
LEASE_SLACK_S = 10.0
UNREACHABLE = (OSError, http.client.HTTPException)
Disturb = Callable[["FaultPlan", int], None]


class HistoryOptions(NamedTuple):
    """Options of the scene.

    seconds: duration of the traffic
    has_leases: whether to wait for the end of all leases
    out: file for the history, or None
    """

    seconds: float
    seed: int
    has_leases: bool
    out: Path | None

    @property
    def lease_s(self) -> float:
        # No lease may end before the replicas were compared.
        return self.seconds + 2 * AGREE_S_MAX + FAULT_S[1]


class HistoryClient:
    """Thread that records every call that it makes."""

    def __init__(self, number: int, history: History, rng: random.Random) -> None:
        self.number, self._history, self._rng = number, history, rng
        self._count, self._held = 0, list[tuple[str, int]]()
        self._positions = dict[str, int]()

    def run(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            rng = self._rng
            if len(self._held) < HELD_MAX and rng.random() < 0.4:
                self._book_new()
            elif self._held:
                self._use(*rng.choice(self._held))
            time.sleep(rng.uniform(0.0, PAUSE_S))

    def _book_new(self) -> None:
        self._count += 1
        name = f"c{self.number}-{self._count}"
        self._positions[name] = self._rng.randrange(1000)
        first, second = self._rng.sample(NUMBERS, 2)
        answer = self.send("book", first, name)
        if answer.status is None:
            answer = self.send("repeat", second, name)
        elif self._rng.random() < CONTESTED_SHARE:
            # Two replicas book one id, which the documentation allows: such ids are contested.
            self.send("repeat", second, name)
        if answer.is_done:
            self._held.append((name, answer.replica))

    def _use(self, name: str, owner: int) -> None:
        rng = self._rng
        kind: Kind = rng.choice(("prefill_complete", "renew", "read", "repeat", "book", "end"))
        if kind == "end":
            # Some reservations never end by a call, so that their leases can be checked.
            if hash_share(name) > KEPT_SHARE:
                self._end(name, owner)
            return
        anywhere = kind == "prefill_complete" and rng.random() < 0.5
        self.send(kind, rng.choice(NUMBERS) if anywhere else owner, name)

    def _end(self, name: str, owner: int) -> None:
        self._held.remove((name, owner))
        replica = self._rng.choice(NUMBERS)
        ended = self.send("end", replica, name)
        if not ended.is_done and replica != owner:
            ended = self.send("end", owner, name)
        if ended.is_done and self._rng.random() < LATE_READ_SHARE:
            time.sleep(self._rng.uniform(0.0, 2.0))
            self.send("read", ended.replica, name)

    def send(self, kind: Kind, replica: int, name: str) -> Operation:
        """Send a call and record it."""
        path, body, method = f"/reservations/{name}", None, "POST"
        if kind in ("book", "repeat"):
            path, body = "/select_and_reserve", booking_of(name, self._positions[name])
            body["repeat"] = kind == "repeat"
        elif kind in ("read", "end"):
            method = "GET" if kind == "read" else "DELETE"
        else:
            path += f"/{kind}"
        begin, status, rank = time.monotonic(), None, None
        try:
            status, answer = call(replica, method, path, body)
            if status in (200, 201) and "worker_id" in answer:
                rank = (answer["worker_id"], answer["dp_rank"])
        except UNREACHABLE:
            status = None
        done = Operation(self.number, kind, replica, name, begin, time.monotonic(), status, rank)
        self._history.operations.append(done)
        return done


def hash_share(name: str) -> float:
    """Return a fixed number from 0 to 1 for a name."""
    return random.Random(name).random()


class FaultPlan:
    """Sequence of faults, one replica after the other, with their recorded times."""

    def __init__(self, switch: SwitchProcess, history: History, flags: list[str], seed: int):
        self._switch, self._history, self._flags = switch, history, flags
        self.rng = random.Random(seed)
        self._started = list[subprocess.Popen[bytes]]()

    def run(self, until: float) -> None:
        """Cause faults until a time; the first is a kill, when no other fault excuses a loss."""
        time.sleep(self.rng.uniform(*CALM_S))
        # Taken before the shuffled rounds: these kills happen on an undisturbed network.
        names = ["kill", "kill"]
        while time.monotonic() < until:
            if not names:
                names = list(DISTURBANCES)
                self.rng.shuffle(names)
            name, replica = names.pop(), self.rng.choice(NUMBERS)
            kind: str = "kill" if name == "kill" else "network"
            window = FaultWindow(kind, replica, time.monotonic(), text=name)  # type: ignore[arg-type]
            self._history.faults.append(window)
            DISTURBANCES[name](self, replica)
            set_link(self._switch, replica)
            window.end = time.monotonic()
            time.sleep(self.rng.uniform(*CALM_S))

    def _hold_fault(self) -> None:
        time.sleep(self.rng.uniform(*FAULT_S))

    def kill(self, replica: int) -> None:
        kill_selector(replica)
        time.sleep(self.rng.uniform(0.0, 2.0))
        self._started.append(start_selector(replica, *self._flags))
        wait_until("restart", lambda: is_up(replica), START_S_MAX)
        register_workers(replica)

    def cut(self, replica: int) -> None:
        set_link(self._switch, replica, loss=1.0)
        self._hold_fault()

    def cut_one_way(self, replica: int) -> None:
        for other in NUMBERS:
            if other != replica:
                self._switch.set_fault(LinkFault(replica, other, loss=1.0))
        self._hold_fault()

    def delay(self, replica: int) -> None:
        set_link(self._switch, replica, delay_s=0.1, jitter_s=0.3)
        self._hold_fault()

    def lose(self, replica: int) -> None:
        set_link(self._switch, replica, loss=self.rng.uniform(0.05, 0.3))
        self._hold_fault()

    def flap(self, replica: int) -> None:
        end = time.monotonic() + self.rng.uniform(*FAULT_S)
        while time.monotonic() < end:
            set_link(self._switch, replica, loss=1.0)
            time.sleep(FLAP_S)
            set_link(self._switch, replica)
            time.sleep(FLAP_S)

    def take_down(self, replica: int) -> None:
        """Take the port of the replica down, which its host notices."""
        port = ("ip", "-n", NET, "link", "set", f"data{replica}")
        subprocess.run([*port, "down"], check=True)
        self._hold_fault()
        subprocess.run([*port, "up"], check=True)


DISTURBANCES: dict[str, Disturb] = {
    "kill": FaultPlan.kill,
    "cut": FaultPlan.cut,
    "cut one way": FaultPlan.cut_one_way,
    "delay": FaultPlan.delay,
    "loss": FaultPlan.lose,
    "flap": FaultPlan.flap,
    "down": FaultPlan.take_down,
}


def view_of(number: int) -> ReplicaView:
    """Return the reservations, loads and workers that a replica shows now."""
    rows, after = list[HeldRow](), ""
    while after is not None:
        query = f"limit=1000{f'&after={after}' if after else ''}"
        page = call(number, "GET", f"/reservations?{query}")[1]
        for row in page["reservations"]:
            rank = row["worker_id"], row["dp_rank"]
            is_in_prefill, tokens = row["state"] == "prefill", row["prefill_tokens"]
            rows.append(HeldRow(row["reservation_id"], rank, is_in_prefill, tokens))
        after = page["next"]
    loads = [
        ShownLoad(
            (row["worker_id"], row["dp_rank"]),
            row["active_requests"],
            row["potential_prefill_tokens"],
        )
        for part in call(number, "GET", "/loads")[1]
        for row in part["loads"]
    ]
    workers = [each["worker_id"] for each in call(number, "GET", "/workers")[1]]
    return ReplicaView(rows, loads, workers)


def state_of_all(healed_at: float) -> SettledState:
    """Return the views of all replicas once they agree, or at the end of the promised time."""
    while True:
        views = [view_of(number) for number in NUMBERS]
        now = time.monotonic()
        shown = [
            (
                sorted((row.name, row.rank, row.is_in_prefill) for row in view.rows),
                sorted(view.loads),
            )
            for view in views
        ]
        if all(each == shown[0] for each in shown):
            return SettledState(now, now - healed_at, views)
        if now - healed_at > AGREE_S_MAX:
            return SettledState(now, None, views)
        time.sleep(0.2)


def record_history(switch: SwitchProcess, flags: list[str], options: HistoryOptions) -> History:
    """Play the scene; return its history."""
    history, is_over = History(WORKERS, options.lease_s), threading.Event()
    rng = random.Random(options.seed)
    clients = [HistoryClient(n, history, random.Random(rng.random())) for n in range(CLIENTS)]
    threads = [threading.Thread(target=each.run, args=(is_over,)) for each in clients]
    for thread in threads:
        thread.start()
    try:
        FaultPlan(switch, history, flags, options.seed).run(time.monotonic() + options.seconds)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    healed_at = time.monotonic()
    time.sleep(1.0)
    history.settled = state_of_all(healed_at)
    if options.has_leases:
        last = max(each.end for each in history.operations)
        time.sleep(max(0.0, last + history.lease_s + LEASE_SLACK_S - time.monotonic()))
        history.expired = state_of_all(time.monotonic())
    return history


def show_result(history: History, violations: list[Violation]) -> None:
    """Print counts, faults and violations."""
    done = Counter(each.kind for each in history.operations if each.is_done)
    lost = sum(each.status is None for each in history.operations)
    faults = Counter(each.text for each in history.faults)
    assert history.settled is not None
    took = history.settled.settled_s
    rows = len(history.settled.views[0].rows)
    print(f"operations: {len(history.operations)}, without an answer: {lost}; done: {dict(done)}")
    print(f"faults: {dict(faults)}")
    print(f"settled after {'-' if took is None else f'{took:.1f}'} s with {rows} reservations")
    for violation in violations:
        print(f"violation: {violation.guarantee}: {violation.text}")
    print(f"verdict: {len(violations)} violations")


def play_history(flags: list[str], options: HistoryOptions) -> int:
    """Play and check inside the network; return the exit status."""
    switch = open_switch()
    try:
        for number in NUMBERS:
            wait_until("start", lambda n=number: is_up(n), START_S_MAX)  # type: ignore[misc]
            register_workers(number)
        time.sleep(2.0)
        history = record_history(switch, flags, options)
    finally:
        switch.stop()
    if options.out is not None:
        options.out.write_bytes(msgspec.json.encode(history))
    violations = check_history(history)
    show_result(history, violations)
    return int(bool(violations))
