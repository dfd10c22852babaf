"""Prefill and decode apart: one request on two ranks, chosen together."""
