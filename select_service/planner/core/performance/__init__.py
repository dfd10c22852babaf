"""Performance models of engines, from measured profiles and observed iterations."""
