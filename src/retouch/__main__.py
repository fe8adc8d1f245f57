"""`python -m retouch` is the same as `retouch`, as far as Python allows.

Python puts the current folder first on the path of every program that is started with `-m`, and
imports some modules of its own before this one. From here on, a file `json.py` there is not run.
"""

import os
import sys

_package_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
try:
    _current_folder = os.getcwd()  # noqa: PTH109
except FileNotFoundError:  # it was deleted, and Python did not put it there
    _current_folder = ""
if sys.path[0] == _current_folder != _package_folder and not sys.flags.safe_path:
    del sys.path[0]

from retouch.cli import main  # noqa: E402

main()
