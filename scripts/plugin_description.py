"""Write the compiled description of the planner's .proto file; `--check` compares it instead.

Needs grpcio-tools, which the development environment has.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from google.protobuf import descriptor_pb2

PLUGINS = Path(__file__).resolve().parents[1] / "select_service" / "planner" / "plugins"
PROTO = PLUGINS / "planner_plugin.proto"
DESCRIPTION = PLUGINS / "planner_plugin.binpb"


def compile_proto(proto: Path) -> bytes:
    """Return the description of a .proto file, without comments."""
    import grpc_tools
    from grpc_tools import protoc

    included = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "description"
        arguments = [f"-I{proto.parent}", f"-I{included}", f"--descriptor_set_out={output}"]
        if protoc.main(["protoc", *arguments, proto.name]) != 0:
            message = f"{proto} cannot be compiled"
            raise ValueError(message)
        return output.read_bytes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or compare the description and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.plugin_description")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    only_check = parser.parse_args(arguments).check
    found = compile_proto(PROTO)
    # Compared as messages: versions of the compiler may order bytes differently.
    parse = descriptor_pb2.FileDescriptorSet.FromString
    if DESCRIPTION.exists() and parse(DESCRIPTION.read_bytes()) == parse(found):
        print("the description is current")
        return 0
    if not only_check:
        DESCRIPTION.write_bytes(found)
    print(f"{'outdated' if only_check else 'written'}: {DESCRIPTION.name}")
    return int(only_check)


if __name__ == "__main__":
    sys.exit(main())
