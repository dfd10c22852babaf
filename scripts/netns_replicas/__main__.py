"""Three selectors on a real network that is disturbed.

    sudo .venv/bin/python -m scripts.netns_replicas cut [--cut-seconds 25] [--kill]
    sudo .venv/bin/python -m scripts.netns_replicas history [--seconds 60] [--seed 1] [--out FILE]
    .venv/bin/python -m scripts.netns_replicas check FILE

`cut` measures the time until replicas agree after a cut. `history` records the calls of clients
while replicas are killed, cut off, slowed down and lose packets, and checks the answers and the
settled state against the documented guarantees; the exit status is 1 after any violation. `check`
checks a recorded history again. The first two need root and `ip`, remove everything that they
create, and are skipped with a line where no network namespace can be made.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import msgspec

from scripts.netns_replicas.cut_scene import play_cut
from scripts.netns_replicas.guarantees import check_history
from scripts.netns_replicas.history import History
from scripts.netns_replicas.history_scene import HistoryOptions, play_history, show_result
from scripts.netns_replicas.namespaced_replicas import (
    NET,
    NUMBERS,
    ROOT,
    build_network,
    kill_selector,
    remove_network,
    start_selector,
    why_not_available,
)


def parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.netns_replicas",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    scenes = parser.add_subparsers(dest="scene", required=True)
    cut = scenes.add_parser("cut", help="time until replicas agree after a cut")
    cut.add_argument("--cut-seconds", type=float, default=25.0, help="duration (default 25)")
    cut.add_argument("--kill", action="store_true", help="kill the two others meanwhile")
    history = scenes.add_parser("history", help="history under faults, checked")
    history.add_argument("--seconds", type=float, default=60.0, help="of traffic (default 60)")
    history.add_argument("--seed", type=int, default=1, help="seed of the faults (default 1)")
    history.add_argument("--out", type=Path, help="JSON file for the history")
    history.add_argument(
        "--without-leases", action="store_true", help="do not wait for the end of all leases"
    )
    check = scenes.add_parser("check", help="check a recorded history")
    check.add_argument("file", type=Path, metavar="FILE")
    return parser.parse_args(words)


def play(given: argparse.Namespace, flags: list[str]) -> int:
    """Play a scene inside the network; return the exit status."""
    if given.scene == "cut":
        return play_cut(given.cut_seconds, kills=given.kill)
    return play_history(flags, history_options(given))


def history_options(given: argparse.Namespace) -> HistoryOptions:
    out = None if given.out is None else given.out.resolve()
    return HistoryOptions(given.seconds, given.seed, not given.without_leases, out)


def play_in_namespaces(words: list[str], flags: list[str]) -> int:
    """Create the network and the selectors, and play the scene among them."""
    remove_network()
    processes = []
    try:
        build_network()
        processes = [start_selector(number, *flags) for number in NUMBERS]
        again = [sys.executable, "-m", "scripts.netns_replicas", "--inside", *words]
        inside = ["ip", "netns", "exec", NET, *again]
        return subprocess.run(inside, cwd=ROOT, check=False).returncode
    finally:
        for number in NUMBERS:
            kill_selector(number)
        for process in processes:
            process.wait()
        remove_network()


def check_file(file: Path) -> int:
    history = msgspec.json.decode(file.read_bytes(), type=History)
    violations = check_history(history)
    show_result(history, violations)
    return int(bool(violations))


def main() -> int:
    given = parse_arguments(sys.argv[1:])
    if given.scene == "check":
        return check_file(given.file)
    flags = []
    if given.scene == "history":
        flags = ["--reservation-ttl-secs", f"{history_options(given).lease_s:g}"]
    if given.inside:
        return play(given, flags)
    reason = why_not_available()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    return play_in_namespaces(sys.argv[1:], flags)


if __name__ == "__main__":
    sys.exit(main())
