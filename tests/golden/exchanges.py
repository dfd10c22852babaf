"""Golden exchanges: scenarios, requests, and comparison with the reference's answers.

A scenario is a file of JSON lines. The first line names the environment, and may hold a policy
file; each other line is a `publish` of KV events or a `call` with the request, and the status and
answer of the reference. A call with a name under `background` waits in the queue. A later line
requires that the call still `waits`, or has the call `join`, with status and answer.

Further lines: `settle` waits only where the reference applies changes after its answer, `pause`
always; `frame` publishes a replica frame, `frames` has the frames that the service has published
since the last such line. A call that is `timed` is never repeated.

Short forms in answers: {"$error": true} is any refusal, with `details` a refusal with these
details, {"$worker": {...}} a worker record without null and empty fields, "$uuid" a generated id,
"$u64" any such number, "$any" anything. A test replaces `<port N>` by the real port of a
publisher, and `<free port>` by a port for the service.
"""

import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.builders.service_process import Answer

FOLDER = Path(__file__).parent
FILES = {
    version: {path.stem: path for path in sorted((FOLDER / folder).glob("*.jsonl"))}
    for version, folder in (("1.3.1", "http"), ("1.6.1", "http_1_6"))
}
"""Files by version of the reference that gave the answers, and by scenario."""
VERSIONS = {name: version for version, files in FILES.items() for name in files}
NAMES = sorted(FILES["1.3.1"])


class Side(Enum):
    """Side of a comparison."""

    OURS = "ours"
    REFERENCE = "reference"


ABSENT = "absent"
REFUSED = "refused"
ANSWERED = "answered"
TEXT = "text"
"""Texts in the list of deviations.

They mean a missing field, a refusal, an answer where the other side refuses, and an answer that is
not JSON.
"""

_OF_THE_RANK = (
    *("worker_id", "dp_rank", "endpoint", "overlap", "effective_prefill_tokens", "kv_hint"),
)
"""Fields of an answer that depend on the rank; with a tie the other rank may be chosen."""

Differences = dict[str, tuple[Any, Any]]
"""Place -> (reference, ours)."""

_WORKER: dict[str, Any] = {
    "endpoint": None,
    "kv_events_endpoint": None,
    "replay_endpoint": None,
    "block_size": None,
    "data_parallel_start_rank": None,
    "data_parallel_size": None,
    "max_num_batched_tokens": None,
    "total_kv_blocks": None,
    "stable_routing_id": None,
    "is_eagle": None,
    "taints": [],
    "topology_domains": {},
    "kv_transfer_domain": None,
    "kv_transfer_enforcement": None,
    "kv_transfer_preferred_weight": None,
}


def read(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the head and the steps of a scenario."""
    lines = FILES[VERSIONS[name]][name].read_text().splitlines()
    head, *steps = [json.loads(line) for line in lines]
    return head, steps


def ports_named_in(steps: list[dict[str, Any]]) -> set[str]:
    published = {step[key] for step in steps for key in ("publish", "frame") if key in step}
    return published | set(re.findall(r"<port (\w+)>", json.dumps(steps)))


def with_ports(step: dict[str, Any], ports: Mapping[str, int]) -> dict[str, Any]:
    """Return the step with real port numbers."""
    text = re.sub(r"<port (\w+)>", lambda found: str(ports[found[1]]), json.dumps(step))
    filled: dict[str, Any] = json.loads(text)
    return filled


def flags_of(head: dict[str, Any], ports: Mapping[str, int], free: int) -> tuple[str, ...]:
    """Return the command line of the service, with real port numbers."""
    flags = with_ports({"flags": head["flags"]}, ports)["flags"]
    return tuple(flag.replace("<free port>", str(free)) for flag in flags)


def write_policy_file(head: dict[str, Any], folder: Path) -> None:
    """Write the policy file where the environment of the scenario expects the file, if any."""
    if "policy_file" in head:
        name = head["environment"]["DYN_ROUTER_POLICY_CONFIG"]
        (folder / name).write_text(head["policy_file"])


def request_of(step: dict[str, Any]) -> tuple[str, str, bytes | None, dict[str, str]]:
    """Return method, path, body and headers of a call."""
    method, path = step["call"].split(" ", 1)
    headers = step.get("headers", {"content-type": "application/json"})
    if "send" in step:
        return method, path, json.dumps(step["send"]).encode(), headers
    if "send_text" in step:
        return method, path, step["send_text"].encode(), headers
    if "send_hex" in step:
        return method, path, bytes.fromhex(step["send_hex"]), headers
    if "send_ones" in step:
        ones = b",".join([b"1"] * step["send_ones"])
        return method, path, b'{"token_ids":[' + ones + b"]}", headers
    return method, path, None, step.get("headers", {})


def differences(step: dict[str, Any], answered: Answer, side: Side = Side.OURS) -> Differences:
    """Return the differences between this answer and that in the file, by "step/field/..."."""
    at, status, answer = str(step["step"]), answered.status, answered.body
    expected, got = expanded(step["answer"]), answer
    if isinstance(got, dict) and [got.get("worker_id"), got.get("dp_rank")] in step.get("tied", ()):
        got = got | {key: expected[key] for key in _OF_THE_RANK if key in expected}
    found = dict(_compare(expected, _shorten_refusal(got, status, side), f"{at}/answer"))
    details = _details(step["answer"])
    if details is not None:
        found |= dict(_compare(details, _details(answer), f"{at}/answer/details"))
    if status != step["status"]:
        found[f"{at}/status"] = (step["status"], status)
    if "allow" in step and status == 405:
        ours = sorted((answered.headers.get("allow") or "").replace(" ", "").split(","))
        if ours != sorted(step["allow"]):
            found[f"{at}/allow"] = (sorted(step["allow"]), ours)
    return found


def compare_frames(step: dict[str, Any], published: list[dict[str, Any]]) -> Differences:
    """Return the differences between the frames in the file and the frames of a service."""
    return dict(_compare(expanded(step["frames"]), published, f"{step['step']}/frames"))


def expanded(answer: Any) -> Any:
    """Return an answer without short forms."""
    if isinstance(answer, list):
        return [expanded(item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    if "$error" in answer:
        return REFUSED
    if "$worker" in answer:
        return _WORKER | answer["$worker"]
    return {key: expanded(value) for key, value in answer.items()}


def _shorten_refusal(answer: Any, status: int, side: Side) -> Any:
    """Return the short form of a refusal, which must have a text and, in this service, a code."""
    if isinstance(answer, str) and status < 400:
        return TEXT if answer else answer
    if status < 400 or answer == "" or (isinstance(answer, dict) and "workers" in answer):
        return answer
    if isinstance(answer, str) and side is Side.REFERENCE:
        return REFUSED  # the reference refuses some paths and queries in plain text
    assert isinstance(answer, dict), f"a refusal that is not JSON: {answer!r}"
    assert isinstance(answer["error"], str)
    assert side is Side.REFERENCE or isinstance(answer["code"], str)
    return REFUSED


def _details(answer: Any) -> Any:
    return answer.get("details") if isinstance(answer, dict) else None


def _compare(expected: Any, got: Any, place: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in sorted(expected.keys() | got.keys()):
            pair = expected.get(key, ABSENT), got.get(key, ABSENT)
            yield from _compare(*pair, f"{place}/{key}")
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        rows = zip(in_order(expected), in_order(got), strict=True)
        for i, pair in enumerate(rows):
            yield from _compare(*pair, f"{place}/{i}")
    elif expected == "$uuid" and isinstance(got, str):
        assert UUID(got).version == 4
    elif expected == "$any" or (expected == "$u64" and _is_u64(got)):
        pass
    elif expected == REFUSED and got != REFUSED:
        yield place, (REFUSED, ANSWERED if isinstance(got, dict | list) else got)
    elif expected != got or isinstance(expected, bool) is not isinstance(got, bool):
        yield place, (expected, got)


def in_order(rows: list[Any]) -> list[Any]:
    """Return rows in a fixed order: the reference sends loads, taints and dumps in any order."""
    if rows and all(isinstance(row, dict) and "active_requests" in row for row in rows):
        return sorted(rows, key=lambda row: (row["worker_id"], row["dp_rank"]))
    if rows and all(isinstance(row, dict) and "storage_tier" in row for row in rows):
        return sorted(rows, key=lambda row: json.dumps(row | {"event": _without_id(row["event"])}))
    if rows and all(isinstance(row, str) for row in rows):
        return sorted(rows)
    return rows


def _without_id(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != "event_id"}


def _is_u64(got: Any) -> bool:
    return isinstance(got, int) and not isinstance(got, bool) and 0 <= got < 2**64
