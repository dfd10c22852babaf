"""Commands besides the service itself, and the entry points of the installed scripts."""
