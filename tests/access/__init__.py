"""Keys, roles, tenants, quotas."""
