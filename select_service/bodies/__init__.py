"""Every HTTP body, defined once; validation and OpenAPI follow from these.

Imports nothing of ours but errors.
"""
