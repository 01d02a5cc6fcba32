"""What every command says at its end."""

import re
from glob import glob
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from vlmill.runtime.console.command import Parser, print_reading_hint
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import PAIRS, REJECTS


def test_the_line_on_reading_a_table_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for shard in range(2):
        row = {"pair_id": f"pair-{shard}", "text": "a kite"}
        write_shard(tmp_path, PAIRS, [row], shard, 2)
    write_shard(tmp_path, REJECTS, [reject("own", "pair-2", Reason.NO_TEXT)])
    write_json(tmp_path / "funnel.json", [])
    print_reading_hint(tmp_path, "pairs")
    said = re.search(r"(pq\.read_table.*\))  ", capsys.readouterr().err)
    assert said is not None
    table = eval(said[1], {"pq": pq, "glob": glob})
    assert table.column("pair_id").to_pylist() == ["pair-0", "pair-1"]
    assert table.schema.names == PAIRS.schema.names


def test_an_unknown_flag_names_the_help_of_its_subcommand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    top = Parser(prog="tool")
    top.add_subparsers(dest="command").add_parser("show")
    for arguments, prog in ((["show", "--images", "x"], "tool show"), (["--images"], "tool")):
        with pytest.raises(SystemExit):
            top.parse_args(arguments)
        assert capsys.readouterr().err.startswith(f"{prog}: unrecognized arguments: --images")
