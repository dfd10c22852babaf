"""Helpers without dependencies on other packages: errors, clocks, cooperative steps, log format."""
