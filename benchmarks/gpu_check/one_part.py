"""Runs one part in this process: writes ``result.json`` into the folder that it is given."""

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu_check.measuring import Setting, card

REASON_LENGTH = 500
FIELDS = ("value", "unit", "peer", "ratio", "limit", "fraction_of_limit")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the part; 1 if it raised."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check.one_part", description=__doc__
    )
    parser.add_argument("run", help="module:function")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", type=torch.device, required=True)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args(argv)
    scratch = arguments.folder / "scratch"
    scratch.mkdir()
    setting = Setting(device=arguments.device, tiny=arguments.tiny, folder=scratch)
    try:
        outcome = {"status": "ok", **result_of(arguments.run, setting)}
    except Exception as error:
        traceback.print_exc()
        outcome = {"status": "failed", "reason": reason_of(error)}
    (arguments.folder / "result.json").write_text(json.dumps(outcome, allow_nan=False))
    return 0 if outcome["status"] == "ok" else 1


def result_of(run: str, setting: Setting) -> dict[str, Any]:
    """Returns what the part gives, with every field that benchmarks have, and the card's name."""
    module, _, function = run.partition(":")
    fields = getattr(importlib.import_module(module), function)(setting)
    size = "tiny" if setting.tiny else "full"
    return {**dict.fromkeys(FIELDS), **fields, "size": size, "card": card(setting.device)}


def reason_of(error: Exception) -> str:
    """Returns the end of a traceback in one line."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    return text if len(text) <= REASON_LENGTH else text[:REASON_LENGTH] + " ..."


if __name__ == "__main__":
    sys.exit(main())
