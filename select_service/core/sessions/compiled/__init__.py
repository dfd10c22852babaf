"""Compiled operations of the table of sessions."""
