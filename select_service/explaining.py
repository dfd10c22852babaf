"""`select-service explain`: why a running service chose a rank, as a table."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from select_service.access.asking import NoAnswer, asked
from select_service.access.presenting import add_arguments, add_url, presented_of
from select_service.command_line import CommandParser, UsageError, file_fault

TIMEOUT_S = 10.0
LISTED = 20
"""Decisions that are listed when none is named."""
REFERENCE = "reference"
REPORTED_MIN = 0.5
"""As the policies of work have it; their kernels are not loaded for that."""
_KNOWN = (
    ("active_requests", "requests"),
    ("prefill_tokens", "prefill"),
    ("left_work_tokens", "left_work"),
    ("active_blocks", "active"),
    ("leading_run", "run"),
    ("gpu_blocks", "gpu"),
    ("cpu_blocks", "cpu"),
    ("external_blocks", "all_tiers"),
    ("extra_wait_tokens", "+wait"),
    ("extra_prefill_tokens", "+prefill"),
)
"""Fields of a candidate, and the columns that show them."""
_DECIDED = {
    "cheapest": "it alone has the lowest cost",
    "tie": "drawn among ranks of the lowest cost",
    "drawn": "drawn by its cost and the temperature",
    "pinned": "the request names it",
    "only": "no other may be chosen",
}


def explain_command(argv: Sequence[str]) -> int:
    """Exit status: 0 shown, 1 the service refuses or cannot be reached.  Raises UsageError."""
    arguments = parser().read(argv)
    if arguments.id is not None and arguments.request is not None:
        raise UsageError("an ID and --request cannot be given together: give one of them")
    base, path, body = arguments.url.rstrip("/"), f"/decisions?limit={LISTED}", None
    if arguments.id is not None:
        path = f"/decisions/{quote(arguments.id, safe='')}"
    if arguments.request is not None:
        path, body = "/explain", _body(arguments.request)
    presented = presented_of(arguments)
    try:
        found = asked(base + path, presented, TIMEOUT_S, body)
        if not isinstance(found, dict) or not found.keys() & {"decisions", "candidates"}:
            raise NoAnswer("the answer is no decision: give another --url")
    except NoAnswer as error:
        print(f"select-service: error: {base}: {error}", file=sys.stderr)
        return 1
    lines = listed(found["decisions"]) if "decisions" in found else explained(found)
    print("\n".join(lines))
    return 0


def parser() -> CommandParser:
    """The command line."""
    result = CommandParser(
        "select-service explain",
        "Why a running service chose a rank: a decision by its id, what it would decide now, or "
        "the last decisions.",
        {
            "select-service explain": "the last decisions",
            "select-service explain request-123": "one decision, with all candidates",
            "select-service explain --request body.json": "what would be decided now",
        },
        "[ID] [OPTION ...]",
    )
    result.add_argument(
        "id", nargs="?", metavar="ID", help="selection_id or reservation_id of a decision"
    )
    result.add_argument(
        "--request",
        metavar="FILE",
        help="file with a body of POST /select for which the service is to decide, without "
        "booking; - reads standard input",
    )
    add_url(result)
    add_arguments(result)
    return result


def _body(name: str) -> bytes:
    """Raises UsageError."""
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"--request: {file_fault(name, error)}") from None


def listed(decisions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of a table of decisions."""
    if not decisions:
        return ["no decision is kept: none was made yet, or the service has --decisions 0"]
    columns = ("decision", "s ago", "id", "model", "tokens", "rank", "cost", "next", "choice")
    return table(columns, map(_listed, decisions))


def _listed(row: Mapping[str, Any]) -> list[str]:
    name = row.get("reservation_id") or row.get("selection_id") or "-"
    next_cost = row["runner_up_cost"]
    return [
        *(str(row["decision"]), f"{row['seconds_ago']:g}", name, row["model_name"]),
        *(str(row["isl_tokens"]), _rank(row), f"{row['cost']:g}"),
        *("-" if next_cost is None else f"{next_cost:g}", row["choice"]),
    ]


def explained(decision: Mapping[str, Any]) -> list[str]:
    """Lines that show a decision with its candidates.

    Columns of zeros are left out, and speeds and weights where all are 1.
    """
    candidates = decision["candidates"]
    chosen = next(each for each in candidates if each["chosen"])
    shown = f", {len(candidates)} shown" if len(candidates) < decision["candidate_count"] else ""
    known = [field for field in _KNOWN if any(each[field[0]] for each in candidates)]
    known += [
        (name, name)
        for name in ("speed", "weight")
        if any(each.get(name, 1.0) != 1.0 for each in candidates)
    ]
    names = chosen["terms"]
    terms = [name for name in names if name == "cost" or any(c["terms"][name] for c in candidates)]
    columns = ("", "rank", *(name for _, name in known), *terms)
    rows = (
        [
            "*" if each["chosen"] else "",
            _rank(each),
            *(f"{each[field]}" for field, _ in known),
            *(f"{each['terms'][name]:g}" for name in terms),
        ]
        for each in candidates
    )
    return [
        *_heads(decision),
        f"chosen: {_rank(chosen)} of {decision['candidate_count']} candidates{shown}: "
        + _DECIDED[decision["choice"]],
        *_unreported(decision),
        "",
        *table(columns, rows),
    ]


def _heads(decision: Mapping[str, Any]) -> list[str]:
    scope = f"{decision['model_name']}, tenant {decision['tenant_id']}"
    if decision["decision"] is None:
        what = "now" + (", but it would wait" if decision.get("would_wait") else "")
    else:
        booked = "booked" if decision["reserved"] else "nothing booked"
        what = f"decision {decision['decision']}, {decision['seconds_ago']:g} s ago, {booked}"
    waited = decision.get("waited")
    wait = f", waited {waited['seconds']:g} s in {waited['policy_class']}" if waited else ""
    return [
        f"{what}{wait}: {scope}, policy {decision['policy']}",
        f"prompt: {decision['isl_tokens']} tokens, {decision['prompt_blocks']} blocks of "
        f"{decision['block_size']}, hash {decision['prompt_hash'] or '-'}",
    ]


def _unreported(decision: Mapping[str, Any]) -> list[str]:
    """Where booked work says little, and so has another price."""
    share = decision.get("reported_share", 1.0)
    if decision["policy"] == REFERENCE or share >= REPORTED_MIN:
        return []
    return [
        f"callers reported the end of {share:.0%} of their prefills (prefill_complete): too few to "
        "go by what is booked"
    ]


def _rank(row: Mapping[str, Any]) -> str:
    return "gone" if row["worker_id"] is None else f"{row['worker_id']}/{row['dp_rank']}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of columns as wide as what is in them."""
    lines = [list(columns), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
