"""Reporter of an engine's GPU faults to the selection service, from `nvidia-smi`.

    python gpu_faults.py --selector http://selector:8092 --worker 7 --gpus 0,1

Every 2 s the program reads the uncorrectable ECC errors of the engine's GPUs and checks that each
GPU answers. A new error, or a lost GPU, is reported once as `fatal`: the rank leaves at once and
the rank's reservations move. Run the program on the engine's host, and add the address of this host
to --health-reporters. For Xid numbers, pipe the kernel log:
`journalctl -kf -o cat | python gpu_faults.py ... --kernel`.

Environment: SELECTOR_API_KEY is a key of the role caller. Needs only Python.
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

POLL_INTERVAL_S = 2.0
READ_S_MAX = 20.0
FIELDS = "index,ecc.errors.uncorrected.volatile.total"
FATAL_XIDS = frozenset({48, 64, 79, 94, 95, 119, 120})
"""Xid numbers after which the process on the GPU is lost, see docs.nvidia.com/deploy/xid-errors."""
XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): ([0-9]+)")


def read_errors(gpus: list[str]) -> dict[str, int | None]:
    """Return the uncorrectable ECC errors by GPU; None means that the GPU does not answer."""
    command = ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=READ_S_MAX)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(gpus)
    return parse_errors(completed.stdout, gpus)


def parse_errors(table: str, gpus: list[str]) -> dict[str, int | None]:
    """Return the errors in a table of nvidia-smi; a GPU without ECC has 0."""
    rows = dict(line.split(", ", 1) for line in table.splitlines() if ", " in line)
    errors: dict[str, int | None] = {}
    for gpu in gpus:
        text = rows.get(gpu)
        errors[gpu] = None if text is None else int(text) if text.strip().isdigit() else 0
    return errors


def poll_nvidia_smi(gpus: list[str]) -> Iterator[str]:
    """Yield a description of every new fault, without end."""
    previous = read_errors(gpus)
    while True:
        time.sleep(POLL_INTERVAL_S)
        current = read_errors(gpus)
        for gpu in gpus:
            before, count = previous[gpu], current[gpu]
            if count is None and before is not None:
                yield f"GPU {gpu} does not answer"
            elif count is not None and count > (before or 0):
                yield f"GPU {gpu} has {count} uncorrectable ECC errors"
        previous = current


def read_kernel_log(lines: Iterator[str]) -> Iterator[str]:
    """Yield a description of every fatal Xid in the kernel log."""
    for line in lines:
        match = XID.search(line)
        if match is not None and int(match[2]) in FATAL_XIDS:
            yield f"Xid {match[2]} at {match[1]}"


def report_fault(options: argparse.Namespace, fault: str) -> None:
    """Report a fault as `fatal`; print an error if a selector is unreachable or refuses."""
    headers = {"content-type": "application/json"}
    if key := os.environ.get("SELECTOR_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    for selector in options.selector:
        url = f"{selector}/workers/{options.worker}/outcome"
        body = json.dumps({"dp_rank": options.dp_rank, "outcome": "fatal"}).encode()
        try:
            request = urllib.request.Request(url, body, headers, method="POST")
            with urllib.request.urlopen(request, timeout=5):
                print(f"{fault}: reported to {selector}", flush=True)
        except (urllib.error.URLError, OSError) as error:
            print(f"{fault}: not reported to {url}: {error}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--selector", required=True, action="append", help="URL; may be repeated")
    parser.add_argument("--worker", required=True, type=int, help="worker id of the engine")
    parser.add_argument("--dp-rank", type=int, default=0)
    parser.add_argument(
        "--gpus", default="0", help="indexes of the engine's GPUs, separated by commas"
    )
    parser.add_argument("--kernel", action="store_true", help="read the kernel log from stdin")
    options = parser.parse_args()
    if not options.kernel and shutil.which("nvidia-smi") is None:
        print("nvidia-smi is not installed: pipe the kernel log to --kernel", file=sys.stderr)
        return 2
    faults = (
        read_kernel_log(sys.stdin) if options.kernel else poll_nvidia_smi(options.gpus.split(","))
    )
    for fault in faults:
        report_fault(options, fault)
    return 0


if __name__ == "__main__":
    sys.exit(main())
