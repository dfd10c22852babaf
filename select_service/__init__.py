"""Selection service for LLM fleets: an HTTP API, a core without I/O, and adapters around it.

Modules at this level start and connect the components, or are shared by several packages (errors,
URLs, spelling, clocks, log).
"""
