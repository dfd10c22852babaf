"""User-space instructions of a request: this service, earlier commits, and the floor server.

    python -m scripts.bench.request_instructions [--before COMMIT] [--hashes 8] [--connections 64]

Counted by valgrind's callgrind in the server's process while `wrk` sends POST /select to 8 workers.
System calls count nothing, so this is the part above Linux; other load of the machine hardly
changes it.
"""

import argparse
import contextlib
import re
import subprocess
import tempfile
import time
from pathlib import Path

from scripts.bench import conversation_data
from scripts.bench.http_load import load_select
from scripts.bench.plain_ranks import PROCESSOR
from scripts.bench.services_under_test import (
    RunningService,
    ServiceUnderTest,
    own_service,
    pin_load,
    unpack_commit,
)
from scripts.bench.suite.filled_services import burst_messages, fill_index, started_service
from scripts.bench.suite.floor_server import compile_floor, read_answer

WORKERS = 8
WARM_S = 2
SECONDS = 10
_TOTALS = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)


def below_callgrind(contender: ServiceUnderTest, folder: Path) -> ServiceUnderTest:
    """Return a service that valgrind runs, without counting at first."""
    valgrind = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--log-file=/dev/null")
    out = f"--callgrind-out-file={folder / 'counts'}"
    made = contender._replace(command=(*valgrind, out, *contender.command))
    return made.with_variables(**PROCESSOR)


def count_instructions(
    running: RunningService, bodies: list[bytes], connections: int, folder: Path
) -> float:
    """Return the instructions of a request."""
    load_select(running.port, bodies, connections, WARM_S)
    _control(running, "--instr=on")
    # Timers and other threads count for themselves, in the same time without requests.
    _control(running, "--zero")
    time.sleep(SECONDS)
    idle = _dumped_count(running, folder)
    result = load_select(running.port, bodies, connections, SECONDS)
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


def measure(given: argparse.Namespace, contenders: list[ServiceUnderTest]) -> None:
    """Print a row for each service and number of hashes, then for the floor."""
    known = conversation_data.make_conversations()
    prompts = {n: conversation_data.select_bodies(known, n) for n in given.hashes}
    messages = burst_messages(known, WORKERS)
    answer = b""
    for contender in contenders:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            with started_service(below_callgrind(contender, folder), WORKERS) as place:
                fill_index(place, messages)
                for n, bodies in prompts.items():
                    found = count_instructions(place.running, bodies, given.connections, folder)
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
                found = count_instructions(running, bodies, given.connections, folder)
                print(f"| floor | {n} | {found:,.0f} |", flush=True)


def main() -> None:
    """Print a table."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", action="append", default=[], metavar="COMMIT")
    parser.add_argument("--hashes", type=int, nargs="+", default=[8])
    parser.add_argument("--connections", type=int, default=64)
    given = parser.parse_args()
    pin_load()
    print("| service | hashes | instructions |\n|---|---|---|")
    with contextlib.ExitStack() as stack:
        trees = {name: stack.enter_context(unpack_commit(name)) for name in given.before}
        measure(given, [own_service(), *(own_service(name, tree) for name, tree in trees.items())])


if __name__ == "__main__":
    main()
