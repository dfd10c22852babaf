"""Discovery: desired workers by source, and the resulting changes of the catalog.

Pure: `adapters.discovery` reads the sources and applies the changes.
"""
