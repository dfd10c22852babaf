"""Authentication and authorization: keys, their roles and tenants, quotas and shares.

This package works on given data, except `keys_file`, which reads the file of keys.
"""
