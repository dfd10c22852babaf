"""Tests of reference answers that survive a restart."""

import asyncio
import json
import os
from random import Random

import pytest

from select_service.adapters.persistence import health_file
from select_service.adapters.persistence.health_file import HealthFile
from select_service.core.health.answers.answer_check import CanaryAnswer
from select_service.core.health.answers.reference_answers import (
    ComparisonFinding,
    ReferenceAnswers,
    ReferenceKey,
)
from select_service.core.health.health_kinds import CheckKind
from select_service.core.identity import Rank
from tests.builders.polling import eventually_on_loop

RANKS = [Rank(worker, 0) for worker in range(3)]


def key_of(number, model="m"):
    return ReferenceKey(model, "default", f"prompt {number}", "v1", "vllm")


def answer_of(number):
    return CanaryAnswer(
        [number, number + 1], [-0.5, -0.25], [{number: -0.5, 7: -0.6}, {number + 1: -0.25}]
    )


def learn(book, number, model="m"):
    settled = book.compare_answers(
        key_of(number, model), dict.fromkeys(RANKS, answer_of(number)), 3, 0.0
    )
    assert settled.finding is ComparisonFinding.LEARNT


def verdict_of(book, number, answer):
    verdict = book.judge_answer(key_of(number), RANKS[0], answer, 1.0)
    return None if verdict is None else verdict.kind


async def write_file(path, book, *numbers):
    file = HealthFile(path, book)
    for number in numbers:
        learn(book, number)
    await file.stop()
    return file


def read_again(path):
    book = ReferenceAnswers()
    HealthFile(path, book).restore_references()
    return book


def test_another_process_restores_the_right_answers(tmp_path):
    path = tmp_path / "health"
    asyncio.run(write_file(path, ReferenceAnswers(), 1, 2))
    book = read_again(path)
    assert verdict_of(book, 1, answer_of(1)) is CheckKind.PASS
    assert verdict_of(book, 2, answer_of(1)) is CheckKind.TOKEN_MISMATCH
    assert verdict_of(book, 3, answer_of(3)) is None
    assert not book.has_changed


def test_restored_answers_are_kept_with_answers_learnt_later(tmp_path):
    path = tmp_path / "health"
    asyncio.run(write_file(path, ReferenceAnswers(), 1))

    async def scene():
        book = ReferenceAnswers()
        file = HealthFile(path, book)
        file.restore_references()
        learn(book, 2)
        await file.stop()

    asyncio.run(scene())
    assert len(list(read_again(path).iterate_stored())) == 2


async def test_forgotten_answers_are_not_kept(tmp_path):
    path = tmp_path / "health"
    book = ReferenceAnswers()
    file = await write_file(path, book, 1)
    learn(book, 1, "other")
    book.forget_model("m")
    await file.stop()
    (reference,) = read_again(path).iterate_stored()
    assert reference.key.model_name == "other"


async def test_only_changes_are_written_periodically(tmp_path):
    path = tmp_path / "health"
    book = ReferenceAnswers()
    file = HealthFile(path, book)
    assert not file.take_changes(0.0)
    learn(book, 1)
    file.take_changes(0.1)
    await eventually_on_loop(path.exists)
    await file.stop()
    before = path.stat().st_mtime_ns
    file.take_changes(0.2)
    await file.stop()
    assert path.stat().st_mtime_ns == before


async def test_many_changes_are_taken_in_steps_with_changes_in_between(tmp_path, monkeypatch):
    monkeypatch.setattr(health_file, "REFERENCES_PER_STEP", 2)
    path = tmp_path / "health"
    book = ReferenceAnswers()
    file = HealthFile(path, book)
    for number in range(5):
        learn(book, number)
    assert [file.take_changes(0.0) for _ in range(3)] == [True, True, False]
    learn(book, 5)  # while the others are being written
    await file.stop()
    assert len(list(read_again(path).iterate_stored())) == 6
    assert not (tmp_path / "health.select-service-tmp").exists()


def test_the_file_is_bounded_and_the_oldest_go(tmp_path, monkeypatch):
    path = tmp_path / "health"
    asyncio.run(write_file(path, ReferenceAnswers(), 1))
    bytes_max = 3 * path.stat().st_size
    monkeypatch.setattr(health_file, "HEALTH", health_file.HEALTH._replace(bytes_max=bytes_max))
    asyncio.run(write_file(path, ReferenceAnswers(), *range(20)))
    assert path.stat().st_size <= bytes_max
    prompts = [reference.key.prompt for reference in read_again(path).iterate_stored()]
    assert prompts[-1] == "prompt 19"
    assert 1 < len(prompts) < 20


def test_a_failed_write_is_logged_and_the_process_goes_on(tmp_path):
    file = asyncio.run(write_file(tmp_path / "none" / "health", ReferenceAnswers(), 1))
    assert file.failures == 1


GOOD = {
    "key": ["m", "default", "p", "", ""],
    "tokens": [1],
    "logprobs": [-1.0],
    "top": [{"1": -1.0}],
    "tolerance": 0.02,
}


def whole(*references, **more):
    document = {"format": "select-service health", "references": references, **more}
    return json.dumps(document, separators=(",", ":")).encode()


UNUSABLE = [
    whole(GOOD)[:-1],
    whole(GOOD) + b"\xff",
    whole(GOOD) + b"[" * 100_000,
    whole(GOOD, version=2),
    whole({**GOOD, "tokens": []}),
    whole({**GOOD, "logprobs": [-1.0, -2.0]}),
    whole({**GOOD, "top": [{"x": -1.0}]}),
    whole({**GOOD, "key": ["m"]}),
]


@pytest.mark.parametrize("content", UNUSABLE, ids=range(len(UNUSABLE)))
def test_a_file_that_cannot_be_used_is_moved_aside(tmp_path, content):
    path = tmp_path / "health"
    path.write_bytes(content)
    assert not list(read_again(path).iterate_stored())
    assert not path.exists()
    assert (tmp_path / "health.refused").read_bytes() == content
    path.write_bytes(whole(GOOD))
    assert len(list(read_again(path).iterate_stored())) == 1


@pytest.mark.parametrize("content", [b"shopping list", b"{", b"[1]", whole(GOOD, format="x")])
async def test_a_foreign_file_is_neither_moved_nor_overwritten(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    file = HealthFile(path, book := ReferenceAnswers())
    file.restore_references()
    learn(book, 1)
    await file.stop()
    assert file.failures == 1
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [(path.name, content)]


def test_a_pipe_is_neither_waited_for_nor_moved(tmp_path):
    path = tmp_path / "health"
    os.mkfifo(path)
    assert not list(read_again(path).iterate_stored())
    assert path.is_fifo()


def test_a_flipped_bit_is_found_at_any_position(tmp_path):
    path = tmp_path / "health"
    asyncio.run(write_file(path, ReferenceAnswers(), *range(8)))
    text = path.read_bytes()
    before = list(read_again(path).iterate_stored())
    random = Random(27)
    for _ in range(500):
        content = bytearray(text)
        content[random.randrange(len(text))] ^= 1 << random.randrange(8)
        path.write_bytes(content)
        found = list(read_again(path).iterate_stored())
        assert not found or found == before


def test_a_file_of_before_there_were_checksums_is_read(tmp_path, caplog):
    caplog.set_level("INFO")
    path = tmp_path / "health"
    path.write_bytes(whole(GOOD, version=1))
    assert len(list(read_again(path).iterate_stored())) == 1
    assert "persisted file has no checksum yet" in [each.message for each in caplog.records]


def test_without_a_file_no_answer_is_restored(tmp_path):
    assert not list(read_again(tmp_path / "health").iterate_stored())
