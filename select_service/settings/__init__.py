"""Command line and environment to one frozen configuration, judged before anything is built."""
