"""Runs a part in a separate process, so that it cannot affect the other parts."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.parts import Part

ROOT = Path(__file__).parents[2]
TAIL_LINES = 40


def run_apart(name: str, part: Part, options: Sequence[str], limit_s: float) -> dict[str, Any]:
    """Runs a part and returns its line of a part: its result, or why there is none.

    What it printed goes to stderr if it failed, as its last lines.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu_check.one_part",
            part.run,
            folder,
            *options,
        ]
        ended = run_group(command, place / "log", limit_s)
        log = (place / "log").read_text(errors="replace").splitlines()
        written = place / "result.json"
        outcome = json.loads(written.read_text()) if written.is_file() else {}
    seconds = round(time.monotonic() - started, 1)
    if ended == 0 and outcome.get("status") == "ok":
        return {"name": name, **outcome, "seconds": seconds}
    print(f"# {name} failed; its last lines:", *log[-TAIL_LINES:], sep="\n", file=sys.stderr)
    reason = outcome.get("reason") or why(ended, limit_s, log)
    return {"name": name, **outcome, "status": "failed", "reason": reason, "seconds": seconds}


def run_group(command: Sequence[str], log: Path, limit_s: float) -> int | None:
    """Returns the exit status; None for a process that was ended because it took too long.

    Whatever it started ends with it.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):  # nothing of the group is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def environment(outside: Mapping[str, str]) -> dict[str, str]:
    """Returns the process's variables: it imports this checkout, whatever is installed."""
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [outside.get("PYTHONPATH")])]
    return {**outside, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def why(ended: int | None, limit_s: float, log: Sequence[str]) -> str:
    """Returns the reason for a process that could not give it."""
    if ended is None:
        return f"took more than {limit_s:g} s and was ended"
    said = [line for line in log if line.strip()]
    status = f"ended by signal {-ended}" if ended < 0 else f"ended with status {ended}"
    return f"{status}: {said[-1].strip()}" if said else status
