"""Reports GPU faults of one engine to the selection service, from `nvidia-smi`.

    python gpu_faults.py --selector http://selector:8092 --worker 7 --gpus 0,1

Every 2 s it reads the uncorrectable ECC errors of the engine's GPUs and whether each GPU still
answers. A new error, or a lost GPU, is reported once as `fatal`: the rank leaves at once and its
reservations move. Run it on the engine's host, whose address is in --health-reporters. Xid numbers
stand in the kernel log: `journalctl -kf -o cat | python gpu_faults.py ... --kernel`.

Environment: SELECTOR_API_KEY is a key of the role caller. Needs nothing but Python.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

LOOK_S = 2.0
READ_S_MAX = 20.0
FIELDS = "index,ecc.errors.uncorrected.volatile.total"
FATAL_XIDS = frozenset({48, 64, 79, 94, 95, 119, 120})
"""Xid numbers after which the process on the GPU is lost, see docs.nvidia.com/deploy/xid-errors."""
XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): ([0-9]+)")


def read_errors(gpus: list[str]) -> dict[str, int | None]:
    """Return the uncorrectable ECC errors by GPU; None means that the GPU does not answer."""
    command = ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=READ_S_MAX)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(gpus)
    return parse_errors(shown.stdout, gpus)


def parse_errors(table: str, gpus: list[str]) -> dict[str, int | None]:
    """Return the errors in a table of nvidia-smi; GPUs without ECC count none."""
    rows = dict(line.split(", ", 1) for line in table.splitlines() if ", " in line)
    found: dict[str, int | None] = {}
    for gpu in gpus:
        text = rows.get(gpu)
        found[gpu] = None if text is None else int(text) if text.strip().isdigit() else 0
    return found


def faults_of_smi(gpus: list[str]) -> Iterator[str]:
    """Yield a text for every new fault, until cancelled."""
    before = read_errors(gpus)
    while True:
        time.sleep(LOOK_S)
        now = read_errors(gpus)
        for gpu in gpus:
            was, count = before[gpu], now[gpu]
            if count is None and was is not None:
                yield f"GPU {gpu} does not answer"
            elif count is not None and count > (was or 0):
                yield f"GPU {gpu} has {count} uncorrectable ECC errors"
        before = now


def faults_of_kernel(lines: Iterator[str]) -> Iterator[str]:
    """Yield a text for every fatal Xid in the kernel log."""
    for line in lines:
        match = XID.search(line)
        if match is not None and int(match[2]) in FATAL_XIDS:
            yield f"Xid {match[2]} at {match[1]}"


def report(options: argparse.Namespace, fault: str) -> None:
    """Report a fault as `fatal`; the failure of a report is printed."""
    headers = {"content-type": "application/json"}
    if key := os.environ.get("SELECTOR_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    for url in options.selector:
        place = f"{url}/workers/{options.worker}/outcome"
        body = json.dumps({"dp_rank": options.dp_rank, "outcome": "fatal"}).encode()
        try:
            with urllib.request.urlopen(
                urllib.request.Request(place, body, headers, method="POST"), timeout=5
            ):
                print(f"{fault}: reported to {url}", flush=True)
        except (urllib.error.URLError, OSError) as error:
            print(f"{fault}: {place}: {error}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--selector", required=True, action="append", help="URL; may be repeated")
    parser.add_argument("--worker", required=True, type=int, help="worker id of the engine")
    parser.add_argument("--dp-rank", type=int, default=0)
    parser.add_argument("--gpus", default="0", help="indexes of its GPUs, separated by commas")
    parser.add_argument("--kernel", action="store_true", help="read the kernel log from stdin")
    options = parser.parse_args()
    if not options.kernel and shutil.which("nvidia-smi") is None:
        print("nvidia-smi is not installed: pipe the kernel log to --kernel", file=sys.stderr)
        return 2
    faults = (
        faults_of_kernel(sys.stdin) if options.kernel else faults_of_smi(options.gpus.split(","))
    )
    for fault in faults:
        report(options, fault)
    return 0


if __name__ == "__main__":
    sys.exit(main())
