"""Look-ups of prompts in shared caches over HTTP: Mooncake's master, LMCache's controller."""
