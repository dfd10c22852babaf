"""Tests of the guide's pair of Ray deployments, with deployments of this test in place of Ray's."""

import asyncio
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.builders import worker_body
from tests.builders.launched_process import ROOT
from tests.builders.running import Reached, Running

pytestmark = pytest.mark.process

GUIDE = ROOT / "docs" / "guides" / "prefill-decode.md"
PROMPT = list(range(64))
REPLY = {"kv_transfer_params": {"remote_block_ids": [1, 2]}}


@pytest.fixture(scope="module")
def service() -> Iterator[Reached]:
    with Running("--threads", "1", "--policy", "work") as service:
        yield service


@pytest.fixture
def frontend(service: Reached, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the class of the guide."""
    ray, found = ModuleType("ray"), ModuleType("select_service.ray")
    vars(ray)["serve"] = serve = ModuleType("ray.serve")
    vars(serve)["deployment"] = lambda deployment: deployment
    vars(found)["find"] = lambda: [f"http://127.0.0.1:{service.port}"]
    for name, module in (("ray", ray), ("ray.serve", serve), ("select_service.ray", found)):
        monkeypatch.setitem(sys.modules, name, module)
    _, _, rest = GUIDE.read_text().partition("\n## Ray\n")
    code = rest.partition("```python\n")[2].partition("```")[0].replace('"qwen"', '"m"')
    scope: dict[str, Any] = {"__name__": "guide"}
    exec(compile(code, str(GUIDE), "exec"), scope)
    return scope["PairFrontend"]


class Handle:
    """Handle of a deployment; calls return awaitable answers."""

    def __init__(self, name: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
        self.name, self.calls = name, calls

    @property
    def complete(self) -> "Handle":
        return self

    def remote(self, body: dict[str, Any]) -> "asyncio.Future[dict[str, Any]]":
        self.calls.append((self.name, body))
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        answer.set_result(REPLY if self.name == "prefill" else {"choices": [{"text": "b"}]})
        return answer


@pytest.mark.parametrize("kind", ["nixl", "sglang"])
def test_both_deployments_answer_and_no_load_remains(
    frontend: Any, service: Reached, kind: str
) -> None:
    # Prompts on the decode worker cost more than the move within a host.
    link = {"kind": kind, "host": "h", "bytes_per_token": 131072, "link_gbps": 400.0}
    for worker_id, role in ((1, "prefill"), (2, "decode")):
        fields = {"role": role, "kv_transfer": link, "prefill_tokens_per_s": 33_000.0}
        assert service.call("POST", "/workers", worker_body(worker_id, **fields)).status in (
            200,
            201,
        )
    busy = {"model_name": "m", "reservation_id": "busy", "worker_id": 2, "dp_rank": 0}
    tokens = list(range(100, 500))
    assert service.call("POST", "/reservations", {**busy, "token_ids": tokens}).status == 201
    calls: list[tuple[str, dict[str, Any]]] = []

    async def ask() -> dict[str, Any]:
        front = frontend({1: Handle("prefill", calls)}, {2: Handle("decode", calls)})
        async with front.selector:
            answer: dict[str, Any] = await front({"prompt": PROMPT, "max_tokens": 8})
            return answer

    assert asyncio.run(ask()) == {"choices": [{"text": "b"}]}
    assert [name for name, _ in calls] == ["prefill", "decode"]
    (_, prefill), (_, decode) = calls
    if kind == "nixl":
        assert prefill["max_tokens"] == 1
        assert decode["kv_transfer_params"] == REPLY["kv_transfer_params"]
    else:
        assert prefill["bootstrap_room"] == decode["bootstrap_room"]
    service.call("DELETE", "/reservations/busy")
    assert service.call("GET", "/reservations").body["total"] == 0
