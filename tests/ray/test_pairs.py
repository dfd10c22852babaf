"""Test of the guide's two deployments for prefill and decode, in a real cluster."""

import re
from pathlib import Path
from typing import Any

import pytest
from ray import serve

from select_service.ray import deploy
from tests.builders.launched_process import ROOT
from tests.builders.polling import eventually
from tests.ray.clusters import FLAGS, cluster, port, register, reservations

pytestmark = [pytest.mark.process, pytest.mark.slow]

GUIDE = ROOT / "docs" / "guides" / "prefill-decode.md"
BLOCKS = {"remote_block_ids": [1, 2]}
LINK = {"kind": "nixl", "host": "h", "bytes_per_token": 131072, "link_gbps": 400.0}


@serve.deployment
class PairEngine:
    """Engine of one role that answers with the received body."""

    def __init__(self, role: str) -> None:
        self.role = role

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"role": self.role, "body": body, "kv_transfer_params": BLOCKS}


def front_of_the_guide(folder: Path) -> Any:
    """Return the guide's class.

    Ray pickles the class by value, as the class belongs to no module that workers have.
    """
    (section,) = re.findall(r"\n## Ray\n.*?```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(section.replace('"qwen"', '"m"'), str(folder / "guide.py"), "exec"), scope)
    return scope["PairFrontend"]


def test_a_pair_runs_over_both_deployments(tmp_path: Path) -> None:
    environment = {"DYN_USE_KV_EVENTS": "false", "SELECT_SERVICE_NO_ASSUMED_INDEX": "true"}
    with cluster((32,)):
        urls = deploy(2, port=port(), flags=FLAGS, insecure=True, environment=environment)
        for url in urls:
            for worker_id, role in ((1, "prefill"), (2, "decode")):
                facts = {"role": role, "kv_transfer": LINK, "prefill_tokens_per_s": 33_000.0}
                register(url, worker_id, **facts)
        prefill = PairEngine.options(name="prefill").bind("prefill")
        decode = PairEngine.options(name="decode").bind("decode")
        front = front_of_the_guide(tmp_path).bind({1: prefill}, {2: decode})
        handle = serve.run(front, route_prefix=None)
        try:
            answers = [handle.remote({"prompt": [n] * 640, "max_tokens": 8}) for n in range(20)]
            found = [answer.result() for answer in answers]
            assert {answer["role"] for answer in found} == {"decode"}
            moved = [answer for answer in found if "kv_transfer_params" in answer["body"]]
            assert moved
            assert all(answer["body"]["kv_transfer_params"] == BLOCKS for answer in moved)
            eventually(lambda: [reservations(url) for url in urls] == [0] * len(urls))
        finally:
            serve.shutdown()
