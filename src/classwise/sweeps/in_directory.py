"""``python -m classwise.sweeps.in_directory DIRECTORY MODULE WORDS...``: run a module in a working directory.

A task may run on another machine, while relative paths in its command refer to the directory of the user.
"""

import os
import runpy
import sys

if __name__ == "__main__":
    _, directory, module, *words = sys.argv
    os.chdir(directory)
    sys.path[0] = directory  # as `python -m` in that directory
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
