"""Example values shared by the example bodies; tests validate all examples."""

from typing import Any, Final

EXAMPLE_SCOPE: Final[dict[str, Any]] = {"model_name": "llama-3-8b", "tenant_id": "default"}
EXAMPLE_ANSWER_SCOPE: Final[dict[str, Any]] = {**EXAMPLE_SCOPE, "routing_group": "default"}
EXAMPLE_RANK: Final[dict[str, Any]] = {"worker_id": 1, "dp_rank": 0}
EXAMPLE_TOKENS: Final[dict[str, Any]] = {"token_ids": list(range(100, 132))}
