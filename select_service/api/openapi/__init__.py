"""The OpenAPI document, made from the routes and the body schemas."""
