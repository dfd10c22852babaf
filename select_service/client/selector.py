"""The client's faces: `AsyncSelector`, and `Selector` for programs without an event loop."""
