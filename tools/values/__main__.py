"""Record the values of all parts of the package, and compare two files.

    python -m tools.values record FILE [--only PREFIX] [--jobs N]
    python -m tools.values compare A B [--only PREFIX] [--force]

`record` takes a few minutes on two idle cores. The same command resumes after an interruption; --only records the
parts with this prefix again. The numbers depend on the processor, so the file is not committed. `compare` prints the
keys that were removed, added or changed, and exits with status 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tools.values.recorder import check_same_machine, differences, record, values_of_part


def main(words: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.values", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="record the values of the parts")
    recorder.add_argument("file", type=Path)
    recorder.add_argument("--jobs", type=int, default=2, help="processes at once [2]")
    comparison = commands.add_parser("compare", help="print the differences of two files")
    comparison.add_argument("files", type=Path, nargs=2)
    comparison.add_argument("--force", action="store_true", help="compare files of different machines")
    for command in (recorder, comparison):
        command.add_argument(
            "--only", default="", metavar="PREFIX", help="parts or keys that begin so, such as attack/"
        )
    part = commands.add_parser("part", help="record one part, in this process and folder")
    part.add_argument("name")
    part.add_argument("file", type=Path)
    given = parser.parse_args(words)
    try:
        if given.command == "record":
            record(given.file, given.only, given.jobs)
        elif given.command == "part":
            given.file.write_text(json.dumps(values_of_part(given.name)), encoding="utf-8")
        else:
            first, second = (json.loads(file.read_text(encoding="utf-8")) for file in given.files)
            if not given.force:
                check_same_machine(first, second)
            found = list(differences(first, second, given.only))
            print("\n".join(found) if found else "no difference")
            return int(bool(found))
    except (OSError, ValueError) as error:
        print(f"tools.values: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
