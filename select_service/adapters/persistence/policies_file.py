"""File of the policies set at run time, next to the snapshot file.

The file is rewritten at every change, before the change is answered, and read at start-up.
"""

import asyncio
import logging
from pathlib import Path
from typing import Literal

import msgspec

from select_service.adapters.persistence.persisted_file import PersistedFile
from select_service.base.errors import SelectError
from select_service.core.placement.policies.policy_registry import validate_policy_choice
from select_service.core.registry.fleet.scoped_policies import PolicyScope, ScopedPolicies
from select_service.core.views.policy_views import policy_rules
from select_service.files.atomic_file import PRIVATE_MODE
from select_service.files.persisted_formats import POLICIES, POLICIES_SUFFIX
from select_service.schemas.policies import PolicyRule

log = logging.getLogger("select_service.policy")


class PersistedPolicies(msgspec.Struct, forbid_unknown_fields=True):
    """File content, as JSON."""

    rules: list[PolicyRule]
    format: Literal["select-service policies"] = "select-service policies"
    version: Literal[1] = 1


class PoliciesFile:
    """Store of policies.

    is_written: whether the file contains the current rules
    """

    def __init__(self, snapshot: Path, policies: ScopedPolicies, mode: int = PRIVATE_MODE) -> None:
        """snapshot: path of the snapshot file; its folder and name are used
        mode: permission bits of the file
        """
        path = snapshot.with_name(snapshot.name + POLICIES_SUFFIX)
        self._file = PersistedFile(path, POLICIES, mode, log)
        self.is_written = True
        self._policies = policies
        self._writing = asyncio.Lock()

    def restore_policies(self) -> None:
        """Restore the rules of the file.  An unusable file is moved aside and logged."""
        try:
            content = self._file.read()
            if content is not None:
                _restore_rules(self._file.path, content, self._policies)
        except (OSError, ValueError, SelectError) as error:
            self._file.move_unusable_aside(error, "policies file unusable, starting without it")

    async def write_policies(self) -> None:
        """Write the current rules; a cancelled caller does not cancel the write."""
        # A client that disconnects must not leave a change in force that is missing in the file.
        await asyncio.shield(asyncio.create_task(self._write_policies()))

    async def _write_policies(self) -> None:
        async with self._writing:
            # Encoded under the lock: the last of several concurrent writes has the latest rules.
            content = msgspec.json.encode(PersistedPolicies(policy_rules(self._policies)))
            try:
                await asyncio.to_thread(self._file.write, content)
            except OSError as error:
                self.is_written = False
                fields = {"path": str(self._file.path), "error": str(error)}
                log.warning("policies file write failed", extra={"fields": fields})
            else:
                self.is_written = True


def _restore_rules(path: Path, content: bytes, policies: ScopedPolicies) -> None:
    """Restore all rules of the file, or none.  Raises ValueError, SelectError."""
    kept = msgspec.json.decode(content, type=PersistedPolicies)
    policies.restore_rules(
        {
            PolicyScope(rule.model_name, rule.tenant_id): validate_policy_choice(
                rule.policy, rule.options
            )
            for rule in kept.rules
        }
    )
    fields = {"path": str(path), "rules": len(kept.rules)}
    log.info("run-time policies restored", extra={"fields": fields})
