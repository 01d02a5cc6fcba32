"""docs/own-data.md: four commands, and reasons that exist (tests/test_docs.py tries commands)."""

import re
from pathlib import Path

from vlmill.schemas.rejects import Reason

PAGE = (Path(__file__).parents[3] / "docs" / "own-data.md").read_text(encoding="utf-8")


def test_the_page_has_the_four_commands_in_their_order() -> None:
    section = PAGE.split("## From your captions alone\n")[1]
    block = re.findall(r"^```sh\n(.*?)^```", section, re.M | re.S)[0]
    lines = block.replace("\\\n", " ").splitlines()
    assert [line.split(" --")[0] for line in lines] == [
        "python -m vlmill.pipelines.manifest own",
        "extract-rois run own",
        "train-vl pretrain imagebert-small",
        "train-vl evaluate retrieval",
    ]


def test_the_reasons_that_the_page_names_exist() -> None:
    named = re.findall(r"^\| `(\w+)`", PAGE.split("| reason |")[1].split("\n\n")[0], re.M)
    assert named and set(named) <= {reason.value for reason in Reason}
