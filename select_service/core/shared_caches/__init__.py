"""Tokens of prompts outside the rank that is to run them: in shared caches, and on other ranks."""
