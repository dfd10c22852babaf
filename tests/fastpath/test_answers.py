"""Tests of the texts of ranks, for answers that only need numbers."""

import numpy as np
import pytest

from select_service.fastpath import serve_layout as layout
from select_service.fastpath.response_templates import ResponseTemplates
from tests.builders import a_selector, a_worker
from tests.builders.selector_scenes import KEY
from tests.fastpath.test_bookings import select_and_reserve, services
from tests.fastpath.test_equality import post, prompt_of


def test_texts_that_are_made_stay_while_further_ranks_come(monkeypatch):
    """A new rank is chosen at once: room for the new text must not cost all other texts."""
    selector = a_selector()
    selector.register_worker(a_worker(0))
    partition = selector.fleet.partitions[KEY]
    row, sessions = np.zeros(layout.ROW_LENGTH, np.int64), selector.decisions.sessions
    answers = ResponseTemplates(partition, row, sessions)
    made, moved, text, ensure = (
        [],
        [],
        ResponseTemplates._encode_text,
        ResponseTemplates._ensure_slots,
    )
    monkeypatch.setattr(
        ResponseTemplates, "_encode_text", lambda a, slot: made.append(slot) or text(a, slot)
    )
    monkeypatch.setattr(
        ResponseTemplates, "_ensure_slots", lambda a, n: moved.append(n) or ensure(a, n)
    )
    for worker_id in range(1, 200):
        selector.register_worker(a_worker(worker_id))
        answers.render_template(worker_id)
    assert made == list(range(1, 200))
    assert len(moved) <= 9


def raise_memory_error(*_: object, **__: object) -> None:
    raise MemoryError


@pytest.mark.parametrize("method", ["__init__", "_ensure_slots", "render_template"])
def test_where_no_memory_is_left_for_texts_the_ordinary_path_answers(monkeypatch, method):
    """The ordinary path answers every request as long as the memory is short."""
    asked = post("/select", prompt_of(31, True)), select_and_reserve(None)
    with services() as two:
        with monkeypatch.context() as patch:
            patch.setattr(ResponseTemplates, method, raise_memory_error)
            for data in 2 * asked:
                assert two.send(data).startswith(b"HTTP/1.1 20")
            assert two.answered == 0
        for data in asked:
            assert two.send(data).startswith(b"HTTP/1.1 20")
        assert two.answered == len(asked)


def test_texts_for_which_no_memory_is_left_are_as_before(monkeypatch):
    selector = a_selector()
    selector.register_worker(a_worker(0))
    row, sessions = np.zeros(layout.ROW_LENGTH, np.int64), selector.decisions.sessions
    answers = ResponseTemplates(selector.fleet.partitions[KEY], row, sessions)
    real, calls = np.concatenate, []

    def second_fails(arrays: list[np.ndarray]) -> np.ndarray:
        calls.append(len(arrays))
        if len(calls) == 2:
            raise MemoryError
        return real(arrays)

    monkeypatch.setattr(np, "concatenate", second_fails)
    with pytest.raises(MemoryError):
        answers.render_template(0)
    answers.render_template(0)
