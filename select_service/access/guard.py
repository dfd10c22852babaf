"""Judges who a request comes from, and whether they may call what they ask for.

Without keys everybody may call everything, and nothing is looked at.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hmac import compare_digest
from typing import TYPE_CHECKING, NamedTuple

from select_service.access.api_key import SECRET_CHARS_MAX, ApiKey, digest_of
from select_service.access.roles import MayCall, Role
from select_service.access.shares import NOBODY as NO_HOLDER
from select_service.access.shares import Holder, ShareRules, part_of
from select_service.errors import Forbidden, SelectError, Unauthenticated

if TYPE_CHECKING:
    from select_service.access.quotas import BookingLimits, KeyBookings, KeyUse, TenantBookings

NOBODY = "none"
"""Who is counted where there is no key, or none that is known."""
_SCHEME = b"bearer"

Headers = Iterable[tuple[bytes, bytes]]


class Grant(NamedTuple):
    """Who calls.  key: None where keys are off, or where nobody has said who they are

    tenants: what is shown and changed keeps within them; None: nothing is hidden
    """

    key: ApiKey | None
    tenants: frozenset[str] | None
    roles: frozenset[Role] | None

    @property
    def name(self) -> str:
        return NOBODY if self.key is None else self.key.name

    def has(self, *roles: Role) -> bool:
        """One of them at least."""
        return self.roles is None or not self.roles.isdisjoint(roles)

    def sees(self, tenant_id: str) -> bool:
        return self.tenants is None or tenant_id in self.tenants


EVERYTHING = Grant(None, None, None)
"""Of everybody where there are no keys."""
STRANGER = Grant(None, frozenset(), frozenset())
"""Of who calls what is open to all, and shows no key."""


class Guard:
    """Belongs to the thread of the event loop.

    generation: of the keys; what was found out by others may be wrong now
    refusals: by route, name of the key and code
    readings, failures: of the file of keys since the start;  fault: what is wrong with it now
    """

    def __init__(
        self,
        keys: Sequence[ApiKey] | None = None,
        rules: ShareRules = ShareRules(),  # noqa: B008  it never changes
    ) -> None:
        """keys: None: everybody may call everything;  rules: of the shares of keys"""
        self.is_on = keys is not None
        self.generation = 0
        self.refusals: Counter[tuple[str, str, str]] = Counter()
        self.readings = self.failures = 0
        self.fault: str | None = None
        self._keys: Mapping[bytes, ApiKey] = _by_digest(keys or ())
        self.rules = rules
        self._uses: dict[str, KeyUse] = {}
        self._holders: dict[ApiKey, Holder] = {}
        self._bookings: dict[ApiKey, KeyBookings] = {}
        self._tenants: dict[str, TenantBookings] = {}
        self._limits: BookingLimits | None = None

    def __len__(self) -> int:
        return len(self._keys)

    def replace(self, keys: Sequence[ApiKey]) -> bool:
        """These count from now on, and no others.  False: they are those that counted."""
        assert self.is_on
        self.fault, before, self._keys = None, self._keys, _by_digest(keys)
        if before == self._keys:
            return False
        self.readings += 1
        self.generation += 1
        self._holders.clear()
        self._bookings.clear()
        self._tenants.clear()
        return True

    def keep(self, fault: str) -> None:
        """The file is wrong: the keys that there are go on counting."""
        self.failures += 1
        self.fault = fault

    def stands(self, grant: Grant) -> bool:
        """Does what was granted still count?"""
        return grant.key is None or self._keys.get(grant.key.digest) == grant.key

    def bound_by(self, limits: "BookingLimits") -> None:
        """Bookings have these limits; called once, before the first request."""
        self._limits = limits

    def holder(self, grant: Grant) -> Holder:
        """Who has what a request of the grant uses."""
        key = grant.key
        if key is None:
            return NO_HOLDER
        holder = self._holders.get(key)
        if holder is None:
            holder = self._holders[key] = Holder(key, self.rules)
        return holder

    def use_of(self, key: ApiKey) -> "KeyUse":
        """What it has used of its quotas."""
        from select_service.access.quotas import KeyUse  # no verdict on settings waits for arrays

        use = self._uses.get(key.name)
        if use is None:
            use = self._uses[key.name] = KeyUse(key.name)
        return use

    def uses(self) -> "Mapping[str, KeyUse]":
        """What keys have used, by their names; those that have used nothing may be missing."""
        return self._uses

    def bookings_of(self, grant: Grant) -> "KeyBookings | None":
        """What the key of a grant has booked and may book; None: there are no keys."""
        key, limits = grant.key, self._limits
        if key is None or limits is None:
            return None
        found = self._bookings.get(key)
        if found is None:
            from select_service.access.quotas import KeyBookings

            holder = self.holder(grant)
            tenants = {name: self._tenant(name, limits) for name in sorted(key.tenants or ())}
            found = KeyBookings(self.use_of(key), holder, limits, tenants)
            self._bookings[key] = found
        return found

    def _tenant(self, name: str, limits: "BookingLimits") -> "TenantBookings":
        """All keys of the tenant have the same."""
        found = self._tenants.get(name)
        if found is None:
            from select_service.access.quotas import TenantBookings

            most = part_of(limits.reservations.total, self.rules.tenant)
            most_blocks = part_of(limits.blocks.total, self.rules.tenant)
            found = self._tenants[name] = TenantBookings(name, limits, most, most_blocks)
        return found

    def who(self, route: str, may_call: MayCall, headers: Headers) -> Grant:
        """Who calls.  Raises Unauthenticated, and counts it; what is open is open to strangers."""
        if not self.is_on:
            return EVERYTHING
        try:
            key = self._key_of(headers)
        except Unauthenticated as error:
            if not may_call.roles:
                return STRANGER
            self.refused(route, None, error)
            raise
        return Grant(key, key.tenants, key.roles)

    def let_in(self, route: str, may_call: MayCall, grant: Grant, now: float) -> None:
        """Raises Forbidden, QuotaExceeded, and counts it.  now: in seconds of a steady clock"""
        key = grant.key
        if key is None or not may_call.roles:
            return
        try:
            _check(key, may_call)
            if key.quotas.requests_per_s is not None:
                self.use_of(key).ask(key.quotas, now)
        except SelectError as error:
            self.refused(route, key, error)
            raise

    def refused(self, route: str, key: ApiKey | None, error: SelectError) -> None:
        """Count it."""
        self.refusals[route, NOBODY if key is None else key.name, error.code] += 1

    def _key_of(self, headers: Headers) -> ApiKey:
        """Raises Unauthenticated."""
        given = [value for name, value in headers if name == b"authorization"]
        if not given:
            raise Unauthenticated("a key is needed; with curl: -H 'authorization: Bearer KEY'")
        if len(given) > 1:
            raise Unauthenticated("`authorization` is given more than once")
        scheme, _, secret = given[0].partition(b" ")
        if scheme.lower() != _SCHEME:
            raise Unauthenticated("the scheme of `authorization` is not Bearer")
        key = self._known(secret.strip(b" "))
        if key is None:
            raise Unauthenticated("the key is not known; it may have been revoked")
        return key

    def _known(self, secret: bytes) -> ApiKey | None:
        """Found by the hash, of which a guess tells nothing, and compared in constant time."""
        if len(secret) > SECRET_CHARS_MAX:
            return None
        digest = digest_of(secret)
        key = self._keys.get(digest)
        return key if key is not None and compare_digest(key.digest, digest) else None


def _by_digest(keys: Iterable[ApiKey]) -> Mapping[bytes, ApiKey]:
    return {key.digest: key for key in keys}


def _check(key: ApiKey, may_call: MayCall) -> None:
    """Raises Forbidden."""
    if may_call.roles.isdisjoint(key.roles):
        needed = " or ".join(sorted(may_call.roles))
        raise Forbidden(f"the key `{key.name}` may not call this: it needs the role {needed}")
    if key.tenants is not None and not may_call.is_scoped:
        raise Forbidden(
            f"the key `{key.name}` is bound to tenants, and this is of the whole service"
        )
