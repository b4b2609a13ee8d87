"""The command `benchmarks.gpu.command`, or one line that names a package which this Python lacks."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command."""
    try:
        from benchmarks.gpu import command
    except ModuleNotFoundError as error:
        if error.name == "torch":
            print(f"no CUDA device: the GPU tests and benchmarks were skipped ({sys.executable} has no torch)")
            return 0
        print(f"{sys.executable} has no {error.name}: install it, or add its folder to PYTHONPATH", file=sys.stderr)
        return 1
    return command.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
