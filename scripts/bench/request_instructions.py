"""User-space instructions of a request: this service, earlier commits, and the floor server.

    python -m scripts.bench.request_instructions [--before COMMIT] [--hashes 8] [--connections 64]
    python -m scripts.bench.request_instructions --lives [--workers 8]

Counted by valgrind's callgrind in the server's process while `wrk` sends POST /select, or with
`--lives` the three requests of a reservation, which count as one.  System calls count nothing, so
this is the part above Linux; other load of the machine hardly changes it.
"""

import argparse
import contextlib
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scripts.bench import conversation_data
from scripts.bench.http_load import Lives, LoadResult, load_lives, load_select
from scripts.bench.plain_ranks import PROCESSOR
from scripts.bench.services_under_test import (
    RunningService,
    ServiceUnderTest,
    own_service,
    pin_load,
    unpack_commit,
)
from scripts.bench.suite.filled_services import (
    FilledService,
    burst_messages,
    fill_index,
    started_service,
)
from scripts.bench.suite.floor_server import compile_floor, read_answer
from scripts.bench.suite.request_parts import LIFE_AHEAD, STEPS, hold_lives

WARM_S = 2
SECONDS = 10
_TOTALS = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)


def below_callgrind(contender: ServiceUnderTest, folder: Path) -> ServiceUnderTest:
    """Return a service that valgrind runs, without counting at first."""
    valgrind = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--log-file=/dev/null")
    out = f"--callgrind-out-file={folder / 'counts'}"
    made = contender._replace(command=(*valgrind, out, *contender.command))
    return made.with_variables(**PROCESSOR)


Load = Callable[[int], LoadResult]
"""Function that sends requests for some seconds."""


def count_instructions(running: RunningService, warm: Load, counted: Load, folder: Path) -> float:
    """Return the instructions of a request."""
    assert not warm(WARM_S).errors
    _control(running, "--instr=on")
    # Timers and other threads count for themselves, in the same time without requests.
    _control(running, "--zero")
    time.sleep(SECONDS)
    idle = _dumped_count(running, folder)
    result = counted(SECONDS)
    assert not result.errors
    busy = _dumped_count(running, folder)
    _control(running, "--instr=off")
    return (busy - idle) / result.requests


def _dumped_count(running: RunningService, folder: Path) -> int:
    """Return the instructions since the last dump."""
    before = set(folder.iterdir())
    _control(running, "--dump")
    counts = [_TOTALS.findall(file.read_text()) for file in set(folder.iterdir()) - before]
    assert counts, "callgrind has written no counts"
    return sum(int(number[-1]) for number in counts if number)


def _control(running: RunningService, flag: str) -> None:
    subprocess.run(
        ("callgrind_control", flag, str(running.pid)), check=True, stdout=subprocess.DEVNULL
    )


def prepare_lives(place: FilledService, bodies: list[bytes], connections: int, prefix: str) -> Load:
    """Make the reservations that exist at first; return a function that sends lives."""
    lives = Lives(prefix, place.contender.id_field, LIFE_AHEAD)
    hold_lives(place, lives, bodies)
    return partial(load_lives, place.running.port, bodies, connections, lives=lives)


def count_of_service(
    place: FilledService, bodies: list[bytes], given: argparse.Namespace, folder: Path
) -> float:
    """Return the instructions of POST /select, or of the requests of a life."""
    if not given.lives:
        load = partial(load_select, place.running.port, bodies, given.connections)
        return count_instructions(place.running, load, load, folder)
    warm, counted = (
        prepare_lives(place, bodies, given.connections, f"{len(bodies[0])}-{at}-") for at in (0, 1)
    )
    return STEPS * count_instructions(place.running, warm, counted, folder)


def measure(given: argparse.Namespace, contenders: list[ServiceUnderTest]) -> None:
    """Print a row for each service and number of hashes, then for the floor."""
    known = conversation_data.make_conversations()
    prompts = {n: conversation_data.select_bodies(known, n) for n in given.hashes}
    messages = burst_messages(known, given.workers)
    answer = b""
    for contender in contenders:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            with started_service(below_callgrind(contender, folder), given.workers) as place:
                fill_index(place, messages)
                for n, bodies in prompts.items():
                    found = count_of_service(place, bodies, given, folder)
                    print(f"| {contender.name} | {n} | {found:,.0f} |", flush=True)
                # The floor sends the same bytes, without parsing anything.
                answer = read_answer(place.running.port, next(iter(prompts.values()))[0])
    with compile_floor() as program, tempfile.TemporaryDirectory() as text:
        if program is None:
            return
        folder, file = Path(text), Path(text) / "answer"
        file.write_bytes(answer)
        floor = ServiceUnderTest("floor", (str(program), "--answer", str(file)), None)
        with RunningService(below_callgrind(floor, folder)) as running:
            running.wait_until_healthy()
            for n, bodies in prompts.items():
                load = partial(load_select, running.port, bodies, given.connections)
                found = count_instructions(running, load, load, folder)
                print(f"| floor | {n} | {found:,.0f} |", flush=True)


def main() -> None:
    """Print a table."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", action="append", default=[], metavar="COMMIT")
    parser.add_argument("--hashes", type=int, nargs="+", default=[8])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--lives", action="store_true")
    given = parser.parse_args()
    pin_load()
    print("| service | hashes | instructions |\n|---|---|---|")
    with contextlib.ExitStack() as stack:
        trees = {name: stack.enter_context(unpack_commit(name)) for name in given.before}
        measure(given, [own_service(), *(own_service(name, tree) for name, tree in trees.items())])


if __name__ == "__main__":
    main()
