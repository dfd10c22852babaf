"""What becomes of leases while selectors are killed.

    python scripts/bench/client_outage.py [--leases 10000] [--at-once 100] [--every 5] [--secured]

Three replicas that share their bookings, and one client of all three.  So many callers at a time
have one lease after the other, of half a second each, with a first token and two output blocks.
Every so many seconds one of the replicas, in turn, is killed (SIGKILL) and started again a second
later, empty.  Counted is who was served, who was told that nobody can, how long the slowest of
them waited, whether a caller was booked twice, and what is booked when all is over.
"""

import argparse
import asyncio
import sys
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.process.access import access, add_flag  # noqa: E402
from tests.process.client_outage import FLAGS, outage  # noqa: E402
from tests.process.replica_processes import Replica, mesh  # noqa: E402

LEASE_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description="What becomes of leases while selectors die.")
    parser.add_argument("--leases", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=100, help="callers")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills")
    add_flag(parser)
    given = parser.parse_args()
    with ExitStack() as kept:
        how = kept.enter_context(access(given.secured))
        replicas = [Replica(*FLAGS, access=how) for _ in range(3)]
        for each in replicas:
            kept.enter_context(each)
        mesh(*replicas)
        begin = time.perf_counter()
        work = outage(replicas, given.leases, given.at_once, LEASE_S, given.every, how)
        seen = asyncio.run(work)
        print(f"{time.perf_counter() - begin:.0f} s, of which the last are the time to live")
    for name, value in seen._asdict().items():
        print(f"{name:10} {value}")


if __name__ == "__main__":
    main()
