"""HTTP handlers, one module per resource, and the documents generated from the routes.

Add an endpoint by declaring a route above its handler.  Handlers decode, call the core and encode.
"""
