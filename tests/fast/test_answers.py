"""Texts of ranks, for answers that only need numbers."""

import numpy as np

from select_service.fast import serve_layout as layout
from select_service.fast.answers import Answers
from tests.builders import a_selector, a_worker
from tests.core.selector_scenes import KEY


def test_texts_that_are_made_stay_while_further_ranks_come(monkeypatch):
    """A rank that comes is chosen at once: making room for its text must not cost all others."""
    selector = a_selector()
    selector.register(a_worker(0))
    partition = selector.fleet.partitions[KEY]
    answers = Answers(partition, np.zeros(layout.ROW_LENGTH, np.int64))
    made, moved, text, ensure = [], [], Answers._text, Answers._ensure
    monkeypatch.setattr(Answers, "_text", lambda a, slot: made.append(slot) or text(a, slot))
    monkeypatch.setattr(Answers, "_ensure", lambda a, n: moved.append(n) or ensure(a, n))
    for worker_id in range(1, 200):
        selector.register(a_worker(worker_id))
        assert all(answers.can_tell(slot) for slot in range(partition.table.n_slots))
    assert made == list(range(200))
    assert len(moved) <= 9
