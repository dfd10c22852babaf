"""Parts of example bodies that several nouns share; tests keep all examples valid."""

from typing import Any, Final

SCOPE: Final[dict[str, Any]] = {"model_name": "llama-3-8b", "tenant_id": "default"}
RANK: Final[dict[str, Any]] = {"worker_id": 1, "dp_rank": 0}
TOKENS: Final[dict[str, Any]] = {"token_ids": list(range(100, 132))}
