"""Tests of the file formats in docs/reference/files.md, and of the treatment of unknown fields.

The next version reads files of today, so a change here is a change of the page, too.
"""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from indexer.dumps import compact_writer
from indexer.dumps.compact_reader import CompactReader
from select_service.adapters.persistence.health_file import PersistedHealth
from select_service.adapters.persistence.policies_file import PersistedPolicies
from select_service.core.analysis.decision_log_lines import LogHead
from select_service.schemas.persisted_state import PersistedState
from tests.indexer.dumps.test_loading import LIMITS, frames, load

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "files.md").read_text()
STATE = PersistedState(workers=[], deleted=[], thresholds=[], shed=None)


def as_document(kept: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(msgspec.json.encode(kept))
    return found


def read(kept: Any, **changed: object) -> object:
    text = json.dumps(as_document(kept) | changed).encode()
    return msgspec.json.decode(text, type=type(kept))


KEPT = {
    "select-service state": STATE,
    "select-service health": PersistedHealth(references=[]),
    "select-service decisions": LogHead(),
    "select-service policies": PersistedPolicies(rules=[]),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_document_names_the_formats(name: str) -> None:
    document = as_document(KEPT[name])
    assert (document["format"], document["version"]) == (name, 1)
    assert f"| `{name}`, 1 |" in DOCUMENT
    assert f"| `{compact_writer.FORMAT}`, {compact_writer.VERSION} |" in DOCUMENT


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_a_file_of_another_number_is_not_read(kept: Any) -> None:
    assert read(kept) == kept
    with pytest.raises(msgspec.ValidationError):
        read(kept, version=2)


def test_further_fields_of_the_state_are_left_out() -> None:
    assert read(STATE, later=1) == STATE


@pytest.mark.parametrize(
    "kept", [KEPT["select-service health"], PersistedPolicies([]), LogHead()], ids=str
)
def test_further_fields_of_other_files_are_refused(kept: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(kept, later=1)


@pytest.mark.parametrize("frame", range(5))
def test_further_fields_of_a_snapshot_are_left_out(frame: int) -> None:
    (held,) = load(CompactReader(LIMITS), frames((frame, {"later": 1})))
    assert held.blocks == 2


def test_there_is_a_row_for_each_file() -> None:
    (table,) = re.findall(r"^\| file \| format .*?\n\n", DOCUMENT, re.DOTALL | re.MULTILINE)
    for flag in (
        "--snapshot-path",
        "--state-path",
        ".policies",
        "--health-state",
        "--decision-log",
    ):
        assert flag in table
