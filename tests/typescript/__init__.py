"""A client in TypeScript."""
