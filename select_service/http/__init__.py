"""What is between a socket and a handler: connections, bodies, refusals, words of a route.

What is the same for all endpoints enters here.  Knows nothing of workers.
"""
