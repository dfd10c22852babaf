"""Authentication of requests by API key, and authorization by role and tenant.

Without a file of keys every request is allowed, unchecked.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hmac import compare_digest
from typing import TYPE_CHECKING, NamedTuple

from select_service.auth.api_key import SECRET_CHARS_MAX, ApiKey, hash_secret
from select_service.auth.limit_shares import UNKEYED_HOLDER as NO_HOLDER
from select_service.auth.limit_shares import Holder, ShareRules, fraction_of_limit
from select_service.auth.roles import Role, RoutePermission
from select_service.base.errors import Forbidden, SelectError, Unauthenticated

if TYPE_CHECKING:
    from select_service.auth.quota_usage import BookingLimits, KeyBookings, KeyUsage, TenantBookings

NO_KEY_NAME = "none"
"""Key name in counts of requests without a known key."""
_SCHEME = b"bearer"

Headers = Iterable[tuple[bytes, bytes]]


class Grant(NamedTuple):
    """Authenticated caller.  key: None where keys are off, or for a caller without a key

    tenants: tenants that the caller may see and change; None means all
    """

    key: ApiKey | None
    tenants: frozenset[str] | None
    roles: frozenset[Role] | None

    @property
    def name(self) -> str:
        return NO_KEY_NAME if self.key is None else self.key.name

    def has_any_role(self, *roles: Role) -> bool:
        """Return whether the caller has at least one of the roles."""
        return self.roles is None or not self.roles.isdisjoint(roles)

    def can_see_tenant(self, tenant_id: str) -> bool:
        """Return whether the caller may see the tenant."""
        return self.tenants is None or tenant_id in self.tenants


UNRESTRICTED_GRANT = Grant(None, None, None)
"""Grant of every caller where keys are off."""
ANONYMOUS_GRANT = Grant(None, frozenset(), frozenset())
"""Grant of a caller without a key on a public route."""


class Guard:
    """Authenticator of requests; used on the thread of the event loop.

    generation: number of the current set of keys; results cached under another number are stale
    refusals: counts by route, key name and error code
    readings, failures: readings of the file of keys since the start;  fault: current error of the
    file
    """

    def __init__(
        self,
        keys: Sequence[ApiKey] | None = None,
        rules: ShareRules = ShareRules(),  # noqa: B008  it never changes
    ) -> None:
        """keys: None means that every call is allowed;  rules: shares of the keys"""
        self.is_on = keys is not None
        self.generation = 0
        self.refusals: Counter[tuple[str, str, str]] = Counter()
        self.readings = self.failures = 0
        self.fault: str | None = None
        self._keys: Mapping[bytes, ApiKey] = _by_digest(keys or ())
        self.rules = rules
        self._usages: dict[str, KeyUsage] = {}
        self._holders: dict[ApiKey, Holder] = {}
        self._bookings: dict[ApiKey, KeyBookings] = {}
        self._bookings_by_tenant: dict[str, TenantBookings] = {}
        self._limits: BookingLimits | None = None

    def __len__(self) -> int:
        return len(self._keys)

    def replace_keys(self, keys: Sequence[ApiKey]) -> bool:
        """Replace the keys.  Returns False if the new set equals the current."""
        assert self.is_on
        self.fault, before, self._keys = None, self._keys, _by_digest(keys)
        # Unchanged keys keep their caches, and streams of their clients stay open.
        if before == self._keys:
            return False
        self.readings += 1
        self.generation += 1
        self._holders.clear()
        self._bookings.clear()
        self._bookings_by_tenant.clear()
        return True

    def note_fault(self, fault: str) -> None:
        """Note an error of the file; the current keys stay valid."""
        self.failures += 1
        self.fault = fault

    def is_current(self, grant: Grant) -> bool:
        """Return whether the grant is still valid."""
        # The digest may remain while roles, tenants or quotas of the key have changed.
        return grant.key is None or self._keys.get(grant.key.digest) == grant.key

    def set_booking_limits(self, limits: "BookingLimits") -> None:
        """Set the limits of bookings; called once, before the first request."""
        self._limits = limits

    def holder_of_grant(self, grant: Grant) -> Holder:
        """Return the holder that the grant's resources are counted for."""
        key = grant.key
        if key is None:
            return NO_HOLDER
        holder = self._holders.get(key)
        if holder is None:
            holder = self._holders[key] = Holder(key, self.rules)
        return holder

    def usage_of(self, key: ApiKey) -> "KeyUsage":
        """Return the quota usage of the key."""
        # validation of settings must not wait for the import of numpy
        from select_service.auth.quota_usage import KeyUsage

        use = self._usages.get(key.name)
        if use is None:
            use = self._usages[key.name] = KeyUsage(key.name)
        return use

    def usages(self) -> "Mapping[str, KeyUsage]":
        """Return usage by key name; keys without usage may be missing."""
        return self._usages

    def bookings_of(self, grant: Grant) -> "KeyBookings | None":
        """Return the bookings and booking limits of a grant's key; None means keys are off."""
        key, limits = grant.key, self._limits
        if key is None or limits is None:
            return None
        found = self._bookings.get(key)
        if found is None:
            from select_service.auth.quota_usage import KeyBookings

            holder = self.holder_of_grant(grant)
            tenants = {
                name: self._tenant_bookings(name, limits) for name in sorted(key.tenants or ())
            }
            found = KeyBookings(self.usage_of(key), holder, limits, tenants)
            self._bookings[key] = found
        return found

    def _tenant_bookings(self, name: str, limits: "BookingLimits") -> "TenantBookings":
        """Return the bookings of a tenant, shared by all its keys."""
        found = self._bookings_by_tenant.get(name)
        if found is None:
            from select_service.auth.quota_usage import TenantBookings

            most = fraction_of_limit(limits.reservations.total, self.rules.tenant)
            most_blocks = fraction_of_limit(limits.blocks.total, self.rules.tenant)
            found = self._bookings_by_tenant[name] = TenantBookings(name, limits, most, most_blocks)
        return found

    def authenticate(self, route: str, may_call: RoutePermission, headers: Headers) -> Grant:
        """Authenticate the caller.

        Raises Unauthenticated, which is counted; public routes accept strangers.
        """
        if not self.is_on:
            return UNRESTRICTED_GRANT
        try:
            key = self._key_of(headers)
        except Unauthenticated as error:
            # An invalid key on a public route, such as /health, must not fail a probe.
            if not may_call.roles:
                return ANONYMOUS_GRANT
            self.count_refusal(route, None, error)
            raise
        return Grant(key, key.tenants, key.roles)

    def authorize(self, route: str, may_call: RoutePermission, grant: Grant, now: float) -> None:
        """Check role and quota.

        Raises Forbidden, QuotaExceeded, counted.  now: seconds, monotonic clock
        """
        key = grant.key
        if key is None or not may_call.roles:
            return
        try:
            _check_permission(key, may_call)
            if key.quotas.requests_per_s is not None:
                self.usage_of(key).charge_request(key.quotas, now)
        except SelectError as error:
            self.count_refusal(route, key, error)
            raise

    def count_refusal(self, route: str, key: ApiKey | None, error: SelectError) -> None:
        """Count a refusal."""
        self.refusals[route, NO_KEY_NAME if key is None else key.name, error.code] += 1

    def _key_of(self, headers: Headers) -> ApiKey:
        """Return the key of the `authorization` header.  Raises Unauthenticated."""
        given = [value for name, value in headers if name == b"authorization"]
        if not given:
            raise Unauthenticated("API key required; with curl: -H 'authorization: Bearer KEY'")
        # Proxies and services may disagree on which of two headers counts.
        if len(given) > 1:
            raise Unauthenticated("more than one `authorization` header: send one")
        scheme, _, secret = given[0].partition(b" ")
        if scheme.lower() != _SCHEME:
            raise Unauthenticated("unsupported `authorization` scheme: use `Bearer KEY`")
        key = self._find_key(secret.strip(b" "))
        if key is None:
            raise Unauthenticated("unknown API key: check the key, which may have been revoked")
        return key

    def _find_key(self, secret: bytes) -> ApiKey | None:
        """Return the key of the secret, found by hash and compared in constant time.

        A guessed secret reveals nothing about the hashes of others.
        """
        # Bounds the time of hashing for secrets that cannot be keys.
        if len(secret) > SECRET_CHARS_MAX:
            return None
        digest = hash_secret(secret)
        key = self._keys.get(digest)
        # The dictionary has found the hash already; the comparison does not depend on its details.
        return key if key is not None and compare_digest(key.digest, digest) else None


def _by_digest(keys: Iterable[ApiKey]) -> Mapping[bytes, ApiKey]:
    return {key.digest: key for key in keys}


def _check_permission(key: ApiKey, may_call: RoutePermission) -> None:
    """Raise Forbidden if the key lacks the role, or is bound to tenants on a service-wide route."""
    if may_call.roles.isdisjoint(key.roles):
        needed = " or ".join(sorted(may_call.roles))
        raise Forbidden(f"the key `{key.name}` may not call this route: it needs the role {needed}")
    if key.tenants is not None and not may_call.is_scoped:
        raise Forbidden(
            f"the key `{key.name}` is bound to tenants, and this route covers the whole service"
        )
