from collections.abc import Iterator

import pytest

from select_service.http.body_codec import BODY_BUDGET
from tests.builders.conversation import Conversation


@pytest.fixture
def lean_connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use the protocol of the fast path for all conversations."""
    monkeypatch.setattr(Conversation, "is_lean", True)
    yield
    assert BODY_BUDGET.used == 0
