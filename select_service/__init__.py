"""The selection service: HTTP in front, a pure core behind, edges to engines and other replicas.

Modules at this level start and join the parts, or are words that several rooms use (errors, URLs,
spelling, clocks, log); whatever has a room of its own goes there.
"""
