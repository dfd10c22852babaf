"""What is between a socket and a handler: connections, bodies, refusals, words of a route.

Knows nothing of workers.
"""
