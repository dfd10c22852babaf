"""Start, life and end of the process: settings, composition of all parts, sockets, signals.

`startup_settings` validates the configuration, `build` composes the parts, `lifecycle` runs them.
Only `build` and `lifecycle` import kernels, so that a wrong setting is reported at once.
"""
