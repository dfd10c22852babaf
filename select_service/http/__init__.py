"""HTTP layer between the socket and the handlers: connections, bodies, errors, route declarations.

Code shared by all endpoints belongs here.  This package has no knowledge of workers.
"""
