"""``python -m classwise.sweeps FOLDER``: run the task of a folder and exit with its status."""

import sys
from pathlib import Path

from classwise.core.errors import ClasswiseError
from classwise.sweeps.tasks import run_task

if __name__ == "__main__":
    try:
        status = run_task(Path(sys.argv[1]))
    except ClasswiseError as error:
        print(f"classwise: {error}", file=sys.stderr)
        status = 2
    sys.exit(status if status >= 0 else 128 - status)
