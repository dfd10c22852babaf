"""EDGE: sources of workers, each a task that reads one and offers what it says.

What follows from that is decided in `core/discovery`, and carried out in one place,
`carrying_out`, by the verbs that HTTP has, too.
"""
