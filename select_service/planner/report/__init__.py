"""Report of a planner: an HTML file that opens without network and without scripts."""
