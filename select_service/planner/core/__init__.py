"""From what was observed to how many replicas: no clock, socket, thread or log."""
