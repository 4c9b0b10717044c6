"""Run as a plain file, ``on_path.py FOLDERS SCRIPT ...``: the script, with these folders in front
of ``sys.path``, and of its children's."""

import os
import runpy
import sys

if __name__ == "__main__":
    folders, here = sys.argv[1].split(os.pathsep), os.path.dirname(__file__)
    sys.path[:] = [*folders, *(path for path in sys.path if path != here)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [os.getenv("PYTHONPATH")])])
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
