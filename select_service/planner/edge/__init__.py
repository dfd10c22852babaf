"""I/O around the core: what is observed, the loop of ticks, and what is served."""
