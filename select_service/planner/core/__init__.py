"""Decision of replica counts from observations; no clock, socket, thread or log."""
