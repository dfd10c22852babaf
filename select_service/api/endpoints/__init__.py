"""Handlers of the HTTP endpoints, one module for each group of routes."""
