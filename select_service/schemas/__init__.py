"""Schemas of all HTTP bodies; validation, descriptions and OpenAPI are derived from these.

Holds structs with their field texts and no behaviour.  The only import of ours is the errors.
"""
