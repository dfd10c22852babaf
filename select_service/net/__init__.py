"""Addresses and connections: URLs, egress policy, allowed hosts, TLS, HTTP client, Kubernetes
access.
"""
