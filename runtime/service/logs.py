"""Logs of a service: one JSON object a line, on standard error."""

import json
import logging
import sys
import time
from typing import Any


def log(event: str, **fields: Any) -> None:
    """Writes a line: when, what, and the fields."""
    stamp = (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{int(time.time() % 1 * 1000):03d}Z"
    )
    line = json.dumps({"time": stamp, "event": event, **fields}, default=str, ensure_ascii=True)
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class JsonLines(logging.Handler):
    """Writes the records of libraries as the others."""

    def emit(self, record: logging.LogRecord) -> None:
        fields = {"logger": record.name, "level": record.levelname.lower()}
        if record.exc_info:
            fields["trace"] = logging.Formatter().formatException(record.exc_info)
        log("log", message=record.getMessage(), **fields)


def log_libraries() -> None:
    """Lets warnings and errors of the libraries that serve become such lines."""
    root = logging.getLogger()
    root.handlers = [JsonLines(logging.WARNING)]
    # It would repeat of every wrong form what the answer says.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
