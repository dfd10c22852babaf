"""Reload of files and settings: file watches, SIGHUP, API keys, TLS."""
