"""Plugins of the planner that misbehave, for planners in processes of their own."""

import time
from typing import Any


class Hangs:
    """Never answers."""

    def propose(self, context: Any) -> None:
        time.sleep(3600.0)


class Lies:
    """Names a role and a number that do not exist."""

    def constrain(self, context: Any) -> dict[str, Any]:
        return {"targets": [{"component": "moon", "type": "AT_MOST", "replicas": -7}]}
