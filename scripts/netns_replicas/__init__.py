"""Selectors in network namespaces, between which packets are delayed, lost and cut off."""
