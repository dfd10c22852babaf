"""What engines say of their own load, read from the text of their metrics."""
