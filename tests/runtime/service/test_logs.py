"""To log never blocks and never raises, whatever standard error is."""

import io
import json
import os
from collections.abc import Iterator

import pytest

from vlmill.runtime.service.logs import LineWriter, LogStream, encode_line, flush_log, log


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_lines_are_written_in_order(pipe: tuple[int, int]) -> None:
    writer = LineWriter(pipe[1])
    for number in range(100):
        writer.put(b"%d\n" % number)
    assert writer.flush(60)
    assert os.read(pipe[0], 1_000).split() == [b"%d" % number for number in range(100)]
    assert writer.num_dropped == 0


def test_a_pipe_that_nobody_reads_costs_lines_alone(pipe: tuple[int, int]) -> None:
    """The first lines fill the pipe, the next ones the queue; then they are counted."""
    writer, line = LineWriter(pipe[1], max_bytes=100_000), b"x" * 999 + b"\n"
    for _ in range(1_000):
        writer.put(line)
    assert not writer.flush(0.0) and writer.num_dropped > 500
    received = b""
    while writer.num_dropped + received.count(b"x\n") < 1_000:
        received += os.read(pipe[0], 100_000)
    assert writer.flush(60)
    num_dropped = writer.num_dropped
    writer.put(b"next\n")
    assert writer.flush(60)
    received += os.read(pipe[0], 1_000)
    lines = received.splitlines()
    assert lines[-1] == b"next" and writer.num_dropped == num_dropped
    told = [json.loads(line) for line in lines if line.startswith(b"{")]
    assert sum(line["lines"] for line in told) == num_dropped
    assert {line["event"] for line in told} == {"log_dropped"}


def test_a_full_disk_costs_lines_alone() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    writer = LineWriter(descriptor)
    writer.put(b"lost\n")
    assert writer.flush(60) and writer.num_dropped == 1
    os.close(descriptor)
    writer.put(b"lost\n")  # a closed one, too
    assert writer.flush(60) and writer.num_dropped == 2


def test_a_line_that_was_cut_ends_where_the_next_begins(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, write = LineWriter(pipe[1]), os.write
    room = [3, 0]

    def write_little(descriptor: int, data: bytes) -> int:
        if not room:
            return write(descriptor, data)
        if (size := room.pop(0)) == 0:
            raise OSError
        return write(descriptor, data[:size])

    monkeypatch.setattr(os, "write", write_little)
    for line in (b"first\n", b"second\n"):
        writer.put(line)
        assert writer.flush(60)
    first, told, second = os.read(pipe[0], 1_000).splitlines()
    assert (first, second) == (b"fir", b"second") and json.loads(told)["lines"] == 1


def test_what_is_written_to_standard_error_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    stream: io.TextIOBase = LogStream()
    print("a warning", file=stream)
    stream.write("two\nlines, and the beginning of")
    stream.write(" a third\n")
    flush_log(60)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == [
        *("a warning", "two", "lines, and the beginning of a third")
    ]


def test_a_line_is_json_whatever_it_says(capfd: pytest.CaptureFixture[str]) -> None:
    log("odd", text="\udce9 \n", thing=object)
    flush_log(60)
    (line,) = capfd.readouterr().err.splitlines()
    assert json.loads(line)["text"] == "\udce9 \n"
    assert encode_line("a", b=1).endswith(b"\n")
    loop: list[object] = []
    loop.append(loop)
    assert json.loads(encode_line("a", b=loop))["not_json"] == ["b"]
