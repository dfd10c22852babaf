"""Files: atomic replacement, rotation, claims, YAML, versions of formats, traces."""
