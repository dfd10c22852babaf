"""Canary checks: schedule, attempts and results."""
