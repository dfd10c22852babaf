"""Faulty plugins of the planner, for planners in separate processes."""

import time
from typing import Any


class Hangs:
    """Plugin that never answers."""

    def propose(self, context: Any) -> None:
        time.sleep(3600.0)


class InvalidTargets:
    """Plugin that answers with an unknown role and an invalid number."""

    def constrain(self, context: Any) -> dict[str, Any]:
        return {"targets": [{"component": "moon", "type": "AT_MOST", "replicas": -7}]}
