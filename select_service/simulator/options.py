"""The command line of the demo.  Standard library only: it is judged before any installation."""

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import NamedTuple

from select_service.command_line import (
    CommandParser,
    UsageError,
    above_zero,
    file_fault,
    number,
    typed,
    whole,
)

PROG = "scripts/demo"
REQUESTS_DEFAULT = 2000
MOST = 10**9
LINE_BYTES_MAX = 4 * 2**20
TRACE_FIELDS = {"timestamp", "output_length", "hash_ids"}


class Options(NamedTuple):
    """What the command line decided."""

    requests: int
    workers: int
    ranks: int
    blocks: int
    block_size: int
    seed: int
    trace: Path | None
    speedup: float
    lose: float
    port: int
    once: bool


def parse_options(arguments: list[str] | None = None) -> Options:
    """Read `arguments` (sys.argv when None).  Exits with status 2 when they make no sense."""
    try:
        return Options(**vars(parser().read(sys.argv[1:] if arguments is None else arguments)))
    except UsageError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        sys.exit(2)


def parser() -> CommandParser:
    """The command line."""
    result = CommandParser(
        PROG,
        "Start the selection service and a fleet of simulated engines, drive a workload through "
        "the HTTP API, show what came of it, and stay up for your own requests.",
        {
            PROG: "2,000 requests on four workers, then the page stays up",
            f"{PROG} --once --requests 200": "a short run that ends by itself",
            f"{PROG} --workers 8 --ranks 2 --lose 0.01": "larger, and with lost events",
        },
        epilog="""\
Ends with status 0 when every request went through, nothing stayed booked and
every checked overlap was right; 1 otherwise.""",
    )
    add = result.add_argument
    add("--once", action="store_true", help="end after the report instead of staying up")
    add(
        "--requests",
        type=typed(whole(1, MOST)),
        default=REQUESTS_DEFAULT,
        metavar="N",
        help="requests of the workload, or rows read from the trace (default %(default)s)",
    )
    add(
        "--workers",
        type=typed(whole(1, MOST)),
        default=4,
        metavar="N",
        help="simulated workers (default 4)",
    )
    add(
        "--ranks",
        type=typed(whole(1, MOST)),
        default=1,
        metavar="N",
        help="ranks of each worker (default 1)",
    )
    add(
        "--blocks",
        type=typed(whole(1, MOST)),
        default=4096,
        metavar="BLOCKS",
        help="cache of each rank (default %(default)s)",
    )
    add(
        "--block-size",
        type=typed(whole(1, MOST)),
        default=16,
        metavar="TOKENS",
        help="tokens of a block (default 16)",
    )
    add(
        "--seed",
        type=typed(whole(0, MOST)),
        default=1,
        metavar="N",
        help="seed of workload and fleet (default 1)",
    )
    add(
        "--trace",
        type=_trace,
        metavar="FILE",
        help="Mooncake-format trace (.jsonl, .jsonl.gz) to replay instead of a made workload",
    )
    add(
        "--speedup",
        type=typed(above_zero),
        default=20.0,
        metavar="FACTOR",
        help="factor by which arrivals of the trace come faster (default 20)",
    )
    add(
        "--lose",
        type=typed(_share),
        default=0.0,
        metavar="FRACTION",
        help="share of KV event batches that is withheld, so that replays repair gaps (default 0)",
    )
    add(
        "--port",
        type=typed(whole(0, 65535)),
        default=0,
        metavar="PORT",
        help="HTTP port of the service; 0 takes a free one (default 0)",
    )
    return result


def _trace(text: str) -> Path:
    """A file whose first line could be a request of a trace; the rest is judged when it is read."""
    path = Path(text)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            row = json.loads(lines.readline(LINE_BYTES_MAX))
    except EOFError:
        raise argparse.ArgumentTypeError(f"`{text}` is cut off: it ends inside a block") from None
    except OSError as error:
        raise argparse.ArgumentTypeError(file_fault(text, error)) from None
    except ValueError:
        row = None
    if not isinstance(row, dict) or TRACE_FIELDS - row.keys():
        fields = ", ".join(sorted(TRACE_FIELDS))
        raise argparse.ArgumentTypeError(f"line 1 of {text} is no JSON object with {fields}")
    return path


def _share(text: str) -> float:
    """Raises ValueError."""
    value = number(0, 1)(text)
    if value == 1.0:
        raise ValueError("a number from 0 to below 1")
    return value


if __name__ == "__main__":
    parse_options()
