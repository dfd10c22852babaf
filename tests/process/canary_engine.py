"""python -m tests.process.canary_engine PORT FOLDER: an engine as a process that can be hung.

The engine writes its process id to FOLDER/PORT.
"""

import asyncio
import os
import sys
from pathlib import Path

from tests.builders.toy_engine import ToyEngine, serving


async def main(port: int, folder: Path) -> None:
    async with serving(ToyEngine(), port):
        written = folder / f"{port}.new"
        written.write_text(str(os.getpid()))
        written.replace(folder / str(port))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
