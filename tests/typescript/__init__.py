"""Test of a client in TypeScript."""
