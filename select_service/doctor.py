"""`select-service doctor`: what is wrong with a running service and its engines, for people and
scripts.  It asks GET /doctor until there are no further workers.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from select_service.access.asking import NoAnswer, asked
from select_service.access.presenting import add_arguments, add_url, presented_of
from select_service.bodies.common import U64_MAX
from select_service.command_line import CommandParser, typed, whole

TIMEOUT_S = 60.0
"""Of one page: the service takes half of it at most."""
FINE, FOUND, FAILED = 0, 1, 2
"""Exit status: nothing but notes; a warning or a fault; nobody could be examined."""
_ORDER = ("fault", "warning", "note")


class _Failed(Exception):
    """Why nothing can be said."""


def doctor_command(argv: Sequence[str]) -> int:
    """Exit status: see FINE, FOUND, FAILED.  Raises UsageError, of the same status as FAILED."""
    arguments = parser().read(argv)
    try:
        report = _whole(list(_pages(arguments)))
    except _Failed as error:
        print(f"select-service: error: {error}", file=sys.stderr)
        return FAILED
    lines = [json.dumps(report, indent=2)] if arguments.json else shown(report)
    print("\n".join(lines))
    return FOUND if any(each["severity"] != "note" for each in report["findings"]) else FINE


def parser() -> CommandParser:
    """The command line."""
    result = CommandParser(
        "select-service doctor",
        "What is wrong with a running service and its engines, and what to do about it. Exit "
        "status: 0 nothing but notes, 1 a warning or a fault, 2 nobody could be asked.",
        {
            "select-service doctor": "the service on this machine, and all its engines",
            "select-service doctor --probe": "also with a prompt through each engine",
            "select-service doctor --worker 7 --json": "one engine, for programs",
        },
    )
    result.add_argument(
        "--worker",
        type=typed(whole(0, U64_MAX)),
        metavar="ID",
        help="worker_id of the only worker that is examined (default: all)",
    )
    result.add_argument(
        "--probe",
        action="store_true",
        help="also a tiny prompt through each engine, whose blocks the index must then show",
    )
    add_url(result)
    add_arguments(result)
    result.add_argument("--json", action="store_true", help="output as JSON, for programs")
    return result


def _pages(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Raises _Failed."""
    query: dict[str, object] = {"probe": "true"} if arguments.probe else {}
    if arguments.worker is not None:
        query["worker_id"] = arguments.worker
    presented = presented_of(arguments)
    try:
        while True:
            url = f"{arguments.url.rstrip('/')}/doctor?{urlencode(query)}"
            page = asked(url, presented, TIMEOUT_S)
            if not isinstance(page, dict) or "findings" not in page:
                raise NoAnswer("the answer is no report of a doctor")
            yield page
            if page["next"] is None:
                return
            query["after"] = page["next"]
    except NoAnswer as error:
        raise _Failed(f"{arguments.url}: {error}") from None


def _whole(pages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One report of all."""
    first = pages[0]
    return first | {
        "findings": [finding for page in pages for finding in page["findings"]],
        "examined": [worker for page in pages for worker in page["examined"]],
        "next": None,
        "seconds": round(sum(page["seconds"] for page in pages), 3),
    }


def shown(report: Mapping[str, Any]) -> list[str]:
    """Lines for people: the heaviest first."""
    findings = sorted(report["findings"], key=lambda each: _ORDER.index(each["severity"]))
    lines = []
    for finding in findings:
        head = f"{finding['severity'].upper():8}{finding['subject']}: {finding['text']}"
        lines += [f"{head}  [{finding['code']}]", f"        {finding['fix']}"]
    counts = ((name, sum(f["severity"] == name for f in findings)) for name in _ORDER)
    found = ", ".join(f"{n} {name}{'s' * (n != 1)}" for name, n in counts if n)
    lines += _machine(report.get("machine"))
    n_examined = len(report["examined"])
    what = f"{n_examined} worker{'s' * (n_examined != 1)} examined in {report['seconds']:.1f} s"
    return [*lines, f"{what}: {found or 'nothing was found'}"]


def _machine(machine: Mapping[str, Any] | None) -> list[str]:
    if machine is None:
        return []
    libraries = ", ".join(f"{name} {text}" for name, text in machine["libraries"].items())
    most, processor = machine["memory_bytes_max"], machine["processor"]
    memory = f"memory {machine['memory_bytes'] / 2**20:.0f} "
    memory += "MiB" if most is None else f"of {most / 2**20:.0f} MiB"
    files = f"{machine['descriptors']} of {machine['descriptors_max']} open files"
    late = f"{machine['loop_late_ms']:.1f} ms late (at most {machine['loop_late_ms_max']:.0f})"
    return [
        f"select-service {machine['version']}, Python {machine['python']}, {libraries}",
        f"{memory}, {files}, event loop {late}, "
        f"kernels for {'this processor' if processor == 'this one' else processor}",
    ]
