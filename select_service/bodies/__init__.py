"""Every HTTP body, defined once; validation, descriptions and OpenAPI follow from these.

Structs and their field texts enter, nothing that acts.  Imports nothing of ours but errors.
"""
