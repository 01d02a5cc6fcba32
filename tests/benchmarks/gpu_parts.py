"""Parts that go wrong, for the tests of how a check goes on."""

import os
import subprocess
import sys
import time

from benchmarks.gpu_check.measuring import Setting


def works(setting: Setting) -> dict[str, object]:
    """Gives a result."""
    return {"value": 1.0, "unit": "s", "folder": setting.folder.is_dir()}


def fails(setting: Setting) -> dict[str, object]:
    """Raises."""
    raise ValueError("first line\nsecond line")


def dies(setting: Setting) -> dict[str, object]:
    """Ends the process at once, as a crash in a library does."""
    print("last words", flush=True)
    os._exit(7)


def hangs(setting: Setting) -> dict[str, object]:
    """Never ends, nor does what it started; writes that process's number."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    marker = os.environ["HANGING_CHILD"]
    with open(marker, "w") as file:
        file.write(str(child.pid))
    time.sleep(600)
    return {}
