"""Discovery sources: one task per source reads it and offers the workers found.

`core.registry.discovery` decides which changes follow; `apply_changes` applies them with the same
operations that the HTTP API uses.
"""
