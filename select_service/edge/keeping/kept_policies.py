"""The policies that were set at run time, in a small file beside that of the snapshot.

It is written whole at every change, before the change is answered, and read at the start.
"""

import asyncio
import logging
from pathlib import Path
from typing import Literal

import msgspec

from select_service.bodies.policies import PolicyRule
from select_service.core.decide.policies import checked_choice
from select_service.core.fleet.scoped_policies import PolicyScope, ScopedPolicies
from select_service.core.views.policies import policy_rules
from select_service.edge.keeping.kept_file import KeptFile
from select_service.errors import SelectError
from select_service.kept_formats import POLICIES, POLICIES_ENDING
from select_service.whole_file import PRIVATE

log = logging.getLogger("select_service.policy")


class KeptPolicies(msgspec.Struct, forbid_unknown_fields=True):
    """What the file holds, as JSON."""

    rules: list[PolicyRule]
    format: Literal["select-service policies"] = "select-service policies"
    version: Literal[1] = 1


class KeptPoliciesFile:
    """`is_kept`: does the file hold the rules that count?"""

    def __init__(self, snapshot: Path, policies: ScopedPolicies, mode: int = PRIVATE) -> None:
        """snapshot: the file beside which it is;  mode: of the file"""
        path = snapshot.with_name(snapshot.name + POLICIES_ENDING)
        self._file = KeptFile(path, POLICIES, mode, log)
        self.is_kept = True
        self._policies = policies
        self._writing = asyncio.Lock()

    def read(self) -> None:
        """Let the rules of the file count.  One that cannot be used is moved aside, and told of."""
        try:
            content = self._file.read()
            if content is not None:
                _restore(self._file.path, content, self._policies)
        except (OSError, ValueError, SelectError) as error:
            self._file.refuse(error, "the file of policies cannot be used; starting without it")

    async def keep(self) -> None:
        """Write the rules as they are now; whoever waits for it may stop to."""
        await asyncio.shield(asyncio.create_task(self._keep()))

    async def _keep(self) -> None:
        async with self._writing:
            content = msgspec.json.encode(KeptPolicies(policy_rules(self._policies)))
            try:
                await asyncio.to_thread(self._file.write, content)
            except OSError as error:
                self.is_kept = False
                fields = {"path": str(self._file.path), "error": str(error)}
                log.warning("the file of policies could not be written", extra={"fields": fields})
            else:
                self.is_kept = True


def _restore(path: Path, content: bytes, policies: ScopedPolicies) -> None:
    """All of its rules or none.  Raises ValueError, SelectError."""
    kept = msgspec.json.decode(content, type=KeptPolicies)
    policies.restore(
        {
            PolicyScope(rule.model_name, rule.tenant_id): checked_choice(rule.policy, rule.options)
            for rule in kept.rules
        }
    )
    fields = {"path": str(path), "rules": len(kept.rules)}
    log.info("policies that were set at run time count again", extra={"fields": fields})
