"""`python -m tests.process.with_few_files [flags]`: the command under `ulimit -n 64`."""

import resource
import sys

from select_service.__main__ import main

FILES_MAX = 64

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX))
    sys.exit(main())
