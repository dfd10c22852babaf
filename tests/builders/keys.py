"""Files of API keys for tests."""

from select_service.auth.api_key import format_hash


def secret(name):
    """Return the secret of the key with this name."""
    return f"ssk_{name}_{'x' * 40}"


def bearer(name):
    return f"Bearer {secret(name)}"


def entry(name, *roles, tenants="all", **quotas):
    """Return the entry of a key in TOML.

    tenants: `all` or a list
    """
    lines = ["[[keys]]", f'name = "{name}"', f'hash = "{format_hash(secret(name))}"']
    lines.append(f"roles = {list(roles)}")
    if "caller" in roles or tenants != "all":
        lines.append(f"tenants = {tenants!r}")
    if quotas:
        lines.append("quotas = { " + ", ".join(f"{k} = {v}" for k, v in quotas.items()) + " }")
    return "\n".join(lines) + "\n"


def keys_file(folder, *entries):
    path = folder / "keys.toml"
    path.write_text("\n".join(entries) or "keys = []\n")
    return path
