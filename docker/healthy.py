"""Health of a container: the address that it is given answers, else torch computes as it should.

Ends with status 0, or with 1 and one line.
"""

import os
import sys
from collections.abc import Sequence
from urllib.request import urlopen

SECONDS = 5


def why_not(words: Sequence[str]) -> str | None:
    """What is wrong, or None: of an address in ``words``, or of the GPU if one was given."""
    if words:
        try:
            with urlopen(words[0], timeout=SECONDS):
                return None
        except OSError as error:  # also a status of 400 or above
            return f"{words[0]}: {error}"
    import torch

    given = os.environ.get("NVIDIA_VISIBLE_DEVICES", "") not in ("", "none", "void")
    if given and not torch.cuda.is_available():
        return "the container was given a GPU that torch does not see"
    device = "cuda" if given else "cpu"
    total = float(torch.ones(8, device=device).sum())
    return None if total == 8.0 else f"{device}: eight ones are {total}"


def main() -> int:
    """Says what is wrong, if anything is."""
    why = why_not(sys.argv[1:])
    if why:
        print(why, file=sys.stderr)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
