"""Command `select-service doctor`: finds faults of a running service and its engines.

The command requests GET /doctor repeatedly until all workers are examined.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from select_service.auth.client_credentials import (
    add_credential_flags,
    add_url_flag,
    credentials_from_args,
)
from select_service.auth.json_client import FetchError, fetch_json
from select_service.base.command_line import CommandParser, argument_type, print_error, whole_number
from select_service.schemas.common import U64_MAX

TIMEOUT_S = 60.0
"""Time limit of a page, in seconds; the service needs at most half of it."""
EXIT_ONLY_NOTES, EXIT_FINDINGS, EXIT_NOT_EXAMINED = 0, 1, 2
"""Exit status: only notes, a warning or fault, no examination possible."""
_ORDER = ("fault", "warning", "note")


def doctor_command(argv: Sequence[str]) -> int:
    """Run the command; return EXIT_ONLY_NOTES, EXIT_FINDINGS or EXIT_NOT_EXAMINED.

    Raises UsageError, which also exits with EXIT_NOT_EXAMINED.
    """
    arguments = make_doctor_parser().parse_arguments(argv)
    try:
        report = _merge_pages(list(_fetch_pages(arguments)))
    except FetchError as error:
        print_error(f"{arguments.url}: {error}")
        return EXIT_NOT_EXAMINED
    lines = [json.dumps(report, indent=2)] if arguments.json else format_report(report)
    print("\n".join(lines))
    is_clean = all(each["severity"] == "note" for each in report["findings"])
    return EXIT_ONLY_NOTES if is_clean else EXIT_FINDINGS


def make_doctor_parser() -> CommandParser:
    """Return the argument parser of the command."""
    result = CommandParser(
        "select-service doctor",
        "Find faults of a running service and its engines, with advice. Exit status: 0 = notes "
        "only, 1 = a warning or a fault, 2 = no examination possible.",
        {
            "select-service doctor": "examine the service on this machine and all its engines",
            "select-service doctor --probe": "also send a prompt through each engine",
            "select-service doctor --worker 7 --json": "examine one engine, output for programs",
        },
    )
    result.add_argument(
        "--worker",
        type=argument_type(whole_number(0, U64_MAX)),
        metavar="ID",
        help="worker_id of the worker to examine (default: all)",
    )
    result.add_argument(
        "--probe",
        action="store_true",
        help="send a tiny prompt through each engine and check its blocks in the index",
    )
    add_url_flag(result)
    add_credential_flags(result)
    result.add_argument("--json", action="store_true", help="output as JSON, for programs")
    return result


def _fetch_pages(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the pages of the report.  Raises FetchError."""
    query: dict[str, object] = {"probe": "true"} if arguments.probe else {}
    if arguments.worker is not None:
        query["worker_id"] = arguments.worker
    presented = credentials_from_args(arguments)
    while True:
        url = f"{arguments.url.rstrip('/')}/doctor?{urlencode(query)}"
        page = fetch_json(url, presented, TIMEOUT_S)
        if not isinstance(page, dict) or "findings" not in page:
            raise FetchError("the response is not a doctor report: give another --url")
        yield page
        if page["next"] is None:
            return
        # Pages keep each request within its time limit, however large the fleet is.
        query["after"] = page["next"]


def _merge_pages(pages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the pages into one report."""
    first = pages[0]
    return first | {
        "findings": [finding for page in pages for finding in page["findings"]],
        "examined": [worker for page in pages for worker in page["examined"]],
        "next": None,
        "seconds": round(sum(page["seconds"] for page in pages), 3),
    }


def format_report(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for people, most severe findings first."""
    findings = sorted(report["findings"], key=lambda each: _ORDER.index(each["severity"]))
    lines = []
    for finding in findings:
        head = f"{finding['severity'].upper():8}{finding['subject']}: {finding['text']}"
        lines += [f"{head}  [{finding['code']}]", f"        {finding['fix']}"]
    counts = ((name, sum(f["severity"] == name for f in findings)) for name in _ORDER)
    found = ", ".join(f"{n} {name}{'s' * (n != 1)}" for name, n in counts if n)
    lines += _format_machine(report.get("machine"))
    n_examined = len(report["examined"])
    what = f"{n_examined} worker{'s' * (n_examined != 1)} examined in {report['seconds']:.1f} s"
    return [*lines, f"{what}: {found or 'no findings'}"]


def _format_machine(machine: Mapping[str, Any] | None) -> list[str]:
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
