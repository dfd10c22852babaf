"""Command line of the vector player: python -m tests.vectors FILE; see scripts/play_vectors."""

import json
import sys
from collections import Counter
from pathlib import Path

from tests.vectors.deviations import listed_and_equal, reason_of
from tests.vectors.formats import UnknownFormat, format_of

SHOWN_MAX = 10
"""Largest number of differences that are printed per case."""


def main(path: Path) -> int:
    """Return 0 without differences, 1 after differences, 2 if the file cannot be played."""
    played: Counter[str] = Counter()
    failed = replaced = 0
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        return refuse_file(f"{path}: {error.strerror}")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            case = json.loads(line)
            known = format_of(case)
            found = list(known.play(case))
        except UnknownFormat as error:
            return refuse_file(f"{path}:{number}: unknown format: {error}")
        except (ValueError, KeyError, TypeError) as error:
            return refuse_file(f"{path}:{number}: not understood: {type(error).__name__}: {error}")
        played[known.name] += 1
        case_id = case.get("id", "") if isinstance(case, dict) else ""
        reason = reason_of(case_id, found)
        complaints = list(listed_and_equal(case_id, found))
        if reason is not None:
            replaced += 1
            print(f"{path}:{number}: {known.name} {case_id}: replaced rule: {reason}")
        elif found or complaints:
            failed += 1
            for complaint in complaints:
                print(f"{path}:{number}: {complaint}")
            print(f"{path}:{number}: {known.name} {case.get('id', '')}")
            for difference in found[:SHOWN_MAX]:
                print(f"    {difference}")
    if not played:
        return refuse_file(f"{path}: no cases")
    shown = ", ".join(f"{count} of {name}" for name, count in played.items())
    print(f"{path}: {shown}; {failed} of {played.total()} differ, {replaced} by a replaced rule")
    return 1 if failed else 0


def refuse_file(why: str) -> int:
    """Print why the file cannot be played to standard error, and return exit status 2."""
    print(f"play_vectors: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
