"""Measurement of an engine's profile: a sweep over prompt lengths and concurrencies."""
