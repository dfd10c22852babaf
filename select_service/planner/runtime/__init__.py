"""I/O around the core: sources, the loop of ticks, and the API."""
