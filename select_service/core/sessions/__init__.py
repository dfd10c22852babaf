"""Sessions: which rank ran the last turn of a conversation, and how requests follow it."""
