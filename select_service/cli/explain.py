"""Command `select-service explain`: prints a decision of a running service as a table."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from select_service.auth.client_credentials import (
    add_credential_flags,
    add_url_flag,
    credentials_from_args,
)
from select_service.auth.json_client import FetchError, fetch_json
from select_service.base.command_line import CommandParser, UsageError, file_error_text, print_error

TIMEOUT_S = 10.0
LISTED_DECISIONS = 20
"""Number of listed decisions if no id is given."""
REFERENCE = "reference"
REPORTED_MIN = 0.5
"""Threshold of the work policies, repeated here because importing it would load their kernels."""
_CANDIDATE_COLUMNS = (
    ("active_requests", "requests"),
    ("prefill_tokens", "prefill"),
    ("left_work_tokens", "left_work"),
    ("active_blocks", "active"),
    ("leading_run", "run"),
    ("gpu_blocks", "gpu"),
    ("assumed_tokens", "assumed"),
    ("cpu_blocks", "cpu"),
    ("external_blocks", "all_tiers"),
    ("shared_credit_tokens", "shared"),
    ("extra_wait_tokens", "+wait"),
    ("extra_prefill_tokens", "+prefill"),
)
"""Fields of a candidate and their column titles."""
_CHOICE_TEXTS = {
    "cheapest": "lowest cost",
    "tie": "random choice among ranks of the lowest cost",
    "drawn": "random choice by cost and temperature",
    "pinned": "requested rank",
    "only": "only candidate",
}

_PATH_TEXTS = {
    "cheaper": "the cheaper way",
    "only_choice": "the only way",
    "requested": "the way of the request",
    "threshold": "by the conditional rule of --policy reference",
}


def explain_command(argv: Sequence[str]) -> int:
    """Run the command; return 0 after printing, 1 if the service refuses or is unreachable.

    Raises UsageError.
    """
    arguments = make_explain_parser().parse_arguments(argv)
    if arguments.id is not None and arguments.request is not None:
        raise UsageError("an ID and --request cannot be given together: give one of them")
    base, path, body = arguments.url.rstrip("/"), f"/decisions?limit={LISTED_DECISIONS}", None
    if arguments.id is not None:
        path = f"/decisions/{quote(arguments.id, safe='')}"
    if arguments.request is not None:
        path, body = "/explain", _read_body(arguments.request)
    presented = credentials_from_args(arguments)
    try:
        found = fetch_json(base + path, presented, TIMEOUT_S, body)
        if not isinstance(found, dict) or not found.keys() & {"decisions", "candidates"}:
            raise FetchError("the response is not a decision: give another --url")
    except FetchError as error:
        print_error(f"{base}: {error}")
        return 1
    lines = format_decisions(found["decisions"]) if "decisions" in found else format_decision(found)
    print("\n".join(lines))
    return 0


def make_explain_parser() -> CommandParser:
    """Return the argument parser of the command."""
    result = CommandParser(
        "select-service explain",
        "Explain a decision of a running service: one by its id, a hypothetical one, or the last "
        "ones.",
        {
            "select-service explain": "list the last decisions",
            "select-service explain request-123": "show one decision with its candidates",
            "select-service explain --request body.json": "show a hypothetical decision",
        },
        "[ID] [OPTION ...]",
    )
    result.add_argument(
        "id", nargs="?", metavar="ID", help="selection_id or reservation_id of a decision"
    )
    result.add_argument(
        "--request",
        metavar="FILE",
        help="file with a body of POST /select to decide without booking; - = standard input",
    )
    add_url_flag(result)
    add_credential_flags(result)
    return result


def _read_body(name: str) -> bytes:
    """Return the request body.  Raises UsageError."""
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"--request: {file_error_text(name, error)}") from None


def format_decisions(decisions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return decisions as lines of a table."""
    if not decisions:
        return ["no decisions recorded: none was made yet, or the service has --decisions 0"]
    columns = ("decision", "s ago", "id", "model", "tokens", "rank", "cost", "next", "choice")
    return format_columns(columns, map(_decision_row, decisions))


def _decision_row(row: Mapping[str, Any]) -> list[str]:
    name = row.get("reservation_id") or row.get("selection_id") or "-"
    next_cost = row["runner_up_cost"]
    return [
        *(_number_text(row), f"{row['seconds_ago']:g}", name, row["model_name"]),
        *(str(row["isl_tokens"]), _place_text(row), _cost_text(row["cost"])),
        *(_cost_text(next_cost), row["choice"]),
    ]


def _number_text(row: Mapping[str, Any]) -> str:
    pair = row.get("pair")
    return str(row["decision"]) if pair is None else f"pair {pair['number']}"


def _place_text(row: Mapping[str, Any]) -> str:
    """Return the chosen rank, or both of a pair."""
    pair = row.get("pair")
    if pair is None or pair["path"] == "local":
        return _rank_text(row)
    return f"{pair['prefill_worker_id']}/{pair['prefill_dp_rank']} > {_rank_text(row)}"


def _cost_text(cost: float | None) -> str:
    return "-" if cost is None else f"{cost:g}"


def format_decision(decision: Mapping[str, Any]) -> list[str]:
    """Return a decision and its candidates as lines.

    Columns of zeros are omitted, and so are speeds and weights if all are 1.
    """
    if decision.get("pair") is not None:
        return [*_heading_lines(decision), *_pair_lines(decision["pair"])]
    candidates = decision["candidates"]
    chosen = next(each for each in candidates if each["chosen"])
    shown = f", {len(candidates)} shown" if len(candidates) < decision["candidate_count"] else ""
    # Columns of zeros are dropped: the table must fit a terminal.
    # Selectors of older versions have no assumed tokens.
    known = [each for each in _CANDIDATE_COLUMNS if any(row.get(each[0]) for row in candidates)]
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
            _rank_text(each),
            *(f"{each.get(field, 0)}" for field, _ in known),
            *(f"{each['terms'][name]:g}" for name in terms),
        ]
        for each in candidates
    )
    return [
        *_heading_lines(decision),
        f"chosen: {_rank_text(chosen)} of {decision['candidate_count']} candidates{shown}: "
        + _CHOICE_TEXTS[decision["choice"]],
        *_unreported_remark(decision),
        "",
        *format_columns(columns, rows),
    ]


def _pair_lines(pair: Mapping[str, Any]) -> list[str]:
    """Return the legs of a pair as lines, with the costs of both paths."""
    prefill, decode = pair["legs"]
    ranks = f"prefill on {_rank_text(prefill)}, decode on {_rank_text(decode)}"
    place = ranks if pair["path"] == "remote" else f"{_rank_text(decode)} for both"
    columns = ("leg", "rank", "cached", "own_work", "gpu", "assumed")
    rows = (
        [
            *(leg["leg"], _rank_text(leg), str(leg["cached_tokens"]), str(leg["own_work"])),
            *(str(leg["overlap"]["gpu"]), str(leg["overlap"].get("assumed", 0))),
        ]
        for leg in pair["legs"]
    )
    return [
        f"chosen: {place}: {_PATH_TEXTS.get(pair['reason'], pair['reason'])}",
        f"cost of two ranks: {_cost_text(pair['remote_cost'])}, of one rank: "
        f"{_cost_text(pair['local_cost'])}; {pair['move_tokens']} tokens move, for "
        f"{_cost_text(pair['move_cost'])}",
        "",
        *format_columns(columns, rows),
    ]


def _queue_text(decision: Mapping[str, Any]) -> str:
    """Return what the queue would do with the request; empty for a request with room."""
    if "refusal" in decision:
        return f", but it would be refused: {decision['refusal']['error']}"
    if not decision.get("would_wait"):
        return ""
    wait_s = decision.get("estimated_wait_s")
    return ", but it would wait" + ("" if wait_s is None else f" about {wait_s:.1f} s")


def _heading_lines(decision: Mapping[str, Any]) -> list[str]:
    scope = f"{decision['model_name']}, tenant {decision['tenant_id']}"
    if decision["seconds_ago"] is None:
        what = "now" + _queue_text(decision)
    else:
        booked = "booked" if decision["reserved"] else "nothing booked"
        number = "pair" if decision["decision"] is None else f"decision {decision['decision']}"
        what = f"{number}, {decision['seconds_ago']:g} s ago, {booked}"
    waited = decision.get("waited")
    wait = f", waited {waited['seconds']:g} s in {waited['policy_class']}" if waited else ""
    return [
        f"{what}{wait}: {scope}, policy {decision['policy']}",
        f"prompt: {decision['isl_tokens']} tokens, {decision['prompt_blocks']} blocks of "
        f"{decision['block_size']}, hash {decision['prompt_hash'] or '-'}",
    ]


def _unreported_remark(decision: Mapping[str, Any]) -> list[str]:
    """Return a remark if too few prefill ends are reported, which changes the cost of booked
    work.
    """
    share = decision.get("reported_share", 1.0)
    if decision["policy"] == REFERENCE or share >= REPORTED_MIN:
        return []
    return [
        f"callers reported the end of {share:.0%} of their prefills (prefill_complete): too few "
        "to use booked work"
    ]


def _rank_text(row: Mapping[str, Any]) -> str:
    return "gone" if row["worker_id"] is None else f"{row['worker_id']}/{row['dp_rank']}"


def format_columns(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return table lines with columns as wide as their content."""
    lines = [list(columns), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
