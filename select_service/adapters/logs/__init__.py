"""Log files of decisions and audited requests, and throttled log messages."""
