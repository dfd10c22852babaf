"""Scene of a cut: the third selector is cut off and joined again, while load comes and goes.

Packets vanish without an error. Meanwhile requests are admitted and freed on both sides; with kills
the other two are killed (SIGKILL) and restarted. Prints the time until the replicas agree after the
join. Fails if the time exceeds AGREE_S_MAX, or if load remains.
"""

import time

from scripts.netns_replicas.namespaced_replicas import (
    NAMES,
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
from scripts.netns_replicas.packet_switch import SwitchProcess

AGREE_S_MAX = 45.0
CUT_OFF = 2


def reserve(number: int, names: list[str]) -> None:
    for position, name in enumerate(names):
        status, _ = call(number, "POST", "/select_and_reserve", booking_of(name, position))
        assert status == 200, (number, name, status)


def free(number: int, names: list[str]) -> None:
    for name in names:
        status, _ = call(number, "DELETE", f"/reservations/{name}")
        assert status == 200, (number, name, status)


def requests(number: int) -> int:
    partitions = call(number, "GET", "/loads")[1]
    return sum(row["active_requests"] for part in partitions for row in part["loads"])


def have_equal_loads(n_requests: int) -> bool:
    loads = [call(number, "GET", "/loads")[1] for number in NUMBERS]
    return loads[0] == loads[1] == loads[2] and requests(0) == n_requests


def show(title: str) -> None:
    print(title)
    for number, name in enumerate(NAMES):
        peers = call(number, "GET", "/replica_sync/status")[1]["peers"]
        seen = ", ".join(
            f"{peer['endpoint']} connected={peer['connected']} lost={peer['lost']} "
            f"differs={peer['divergence_reservations']} repairs={peer['repairs']['runs']}"
            for peer in peers
        )
        print(f"  {name}: {requests(number)} requests; {seen}")


def names_of(prefix: str, n: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(n)]


def begin_anew() -> None:
    """Kill the two selectors that are not cut off, restart both and give both load."""
    for number in (0, 1):
        kill_selector(number)
        start_selector(number)
    for number in (0, 1):
        wait_until("start", lambda n=number: is_up(n), START_S_MAX)  # type: ignore[misc]
        register_workers(number)
        reserve(number, names_of(f"anew-{number}-", 50))
        free(CUT_OFF, names_of(f"before-{number}-", 100)[60:])


def experiment_with_kills(switch: SwitchProcess, cut_s: float) -> None:
    begin = prepare(switch)
    begin_anew()
    time.sleep(max(0.0, cut_s - (time.monotonic() - begin)))
    show(f"selector-c was cut off for {cut_s:g} s, the others were killed meanwhile")
    set_link(switch, CUT_OFF)
    took = wait_until("agreement", lambda: have_equal_loads(320), AGREE_S_MAX)
    show(f"joined: equal loads after {took:.2f} s")


def prepare(switch: SwitchProcess) -> float:
    """Give the selectors 300 requests, cut the third off; returns the time of the cut."""
    for number in NUMBERS:
        reserve(number, names_of(f"before-{number}-", 100))
    took = wait_until("equal loads", lambda: have_equal_loads(300), AGREE_S_MAX)
    show(f"300 requests, equal loads after {took:.2f} s")
    set_link(switch, CUT_OFF, loss=1.0)
    return time.monotonic()


def experiment(switch: SwitchProcess, cut_s: float) -> None:
    begin = prepare(switch)
    reserve(0, names_of("cut-0-", 50))
    reserve(2, names_of("cut-2-", 50))
    free(1, names_of("before-0-", 40))
    free(1, names_of("before-2-", 40))
    free(2, names_of("before-1-", 40))
    time.sleep(max(0.0, cut_s - (time.monotonic() - begin)))
    show(f"selector-c was cut off for {cut_s:g} s")
    set_link(switch, CUT_OFF)
    took = wait_until("agreement", lambda: have_equal_loads(280), AGREE_S_MAX)
    show(f"joined: equal loads after {took:.2f} s")
    for number in NUMBERS:
        rest = names_of(f"before-{number}-", 100)[40:]
        free((number + 1) % len(NAMES), rest)
    free(1, names_of("cut-0-", 50) + names_of("cut-2-", 50))
    took = wait_until("no load", lambda: have_equal_loads(0), AGREE_S_MAX)
    show(f"all freed: no load after {took:.2f} s")


def play_cut(cut_s: float, *, kills: bool) -> int:
    """Play the scene inside the network; returns 0, or ends the process with a fault."""
    switch = open_switch()
    try:
        for number in NUMBERS:
            wait_until("start", lambda n=number: is_up(n), START_S_MAX)  # type: ignore[misc]
            register_workers(number)
        time.sleep(2.0)
        (experiment_with_kills if kills else experiment)(switch, cut_s)
    finally:
        switch.stop()
    return 0
