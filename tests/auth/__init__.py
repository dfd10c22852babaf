"""Tests of keys, roles, tenants and quotas."""
