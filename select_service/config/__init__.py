"""Configuration: command line, environment and policy file, merged into one validated object.

A value that two deployments may set differently is defined here, with its variable and help text;
components receive values, never the whole configuration.
"""
