"""What is seen of a job while it runs, on the screen and in Beam."""

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import MetricsFilter

from vlmill.runtime.units.numbers import (
    Numbers,
    UnitProgress,
    count_rejects,
    count_tallies,
    format_notes,
    timed,
)
from vlmill.runtime.units.run_beam import count_in_beam

TALLIES = {
    ("pages", "in"): 5,
    ("pages", "out"): 3,
    ("pages", "no_images"): 2,
    ("pictures", "in"): 4,
    ("pictures", "too_small"): 3,
    ("records", "no_images"): 1,
    ("near_duplicates", "in"): 7,
    ("near_duplicates", "out"): 6,
}
NUMBERS = Numbers(
    pages=5, pictures=4, pairs=6, bytes=10, rejects=6, rejects_no_images=3, rejects_too_small=3
)


def test_tallies_as_numbers() -> None:
    assert Numbers(pages=5, pictures=4, pairs=6, bytes=10) + count_tallies(TALLIES) == NUMBERS
    assert count_tallies({}) == count_rejects({}) == Numbers()


def test_the_screen_shows_sums_and_the_most_frequent_reasons(
    capsys: pytest.CaptureFixture[str],
) -> None:
    numbers = NUMBERS + count_rejects({"other_type": 9, "empty": 1})
    notes = format_notes(numbers + Numbers(bytes=2_000_000, milliseconds=5), 2.0)
    assert notes == {
        **{"pages": "5", "pairs": "6", "pictures": "4", "MB": "2.0 (1/s)"},
        **{"other_type": "9", "no_images": "3", "too_small": "3"},
    }
    with UnitProgress(total=2, label="web pairs, mine") as progress:
        progress.add(NUMBERS)
        progress.idle()
        progress.add(NUMBERS)
    line = capsys.readouterr().err
    assert line.startswith("web pairs, mine: 2/2 units") and "12 rejected, pages 10" in line


class Count(beam.DoFn):
    def process(self, pages: int) -> None:
        numbers = Numbers(pages=pages)
        with timed(numbers):
            numbers += count_rejects({"empty": 1})
        count_in_beam("mine", numbers)


def test_beam_has_the_same_numbers() -> None:
    pipeline = beam.Pipeline(runner="FnApiRunner")
    _ = pipeline | beam.Create([2, 3]) | beam.ParDo(Count())
    found = pipeline.run().metrics().query(MetricsFilter().with_namespace("mine"))
    counters = {metric.key.metric.name: metric.committed for metric in found["counters"]}
    assert counters == {"pages": 5, "rejects": 2, "rejects_empty": 2}
    (spent,) = found["distributions"]
    assert spent.key.metric.name == "milliseconds" and spent.committed.count == 2
