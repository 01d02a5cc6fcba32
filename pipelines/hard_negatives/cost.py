"""A search for hard negatives costs hours that grow with the square of the captions."""

from collections.abc import Sequence

from vlmill.pipelines.hard_negatives.tfidf import NegativeRules, build_index, search
from vlmill.schemas.console.cost import Estimate, Rate, measured_rate

SAMPLE_CAPTIONS = 20_000
ID_BYTES = 36  # of a pair's id: 32 digits, and four bytes for its length
COSINE_BYTES = 4


def output_bytes(num_pairs: int, top: int) -> int:
    """The most that the negatives of so many pairs take, each with ``top`` of them."""
    return num_pairs * (ID_BYTES + min(top, num_pairs) * (ID_BYTES + COSINE_BYTES))


def measure(
    pair_ids: Sequence[str], image_ids: Sequence[str], texts: Sequence[str], rules: NegativeRules
) -> Rate:
    """The rate of one process on the first captions, searched among these alone."""
    count = min(len(pair_ids), SAMPLE_CAPTIONS)
    index = build_index(pair_ids[:count], image_ids[:count], texts[:count], rules)
    return measured_rate(search(index, 0, count, rules), "captions")


def estimate_of(num_pairs: int, top: int, rate: Rate) -> Estimate:
    """The cost of all pairs: a caption is compared with as many times more as there are more."""
    times = max(1.0, num_pairs / SAMPLE_CAPTIONS)
    seconds = rate.seconds_for(num_pairs * times)
    note = "time of one process; divide by Beam's workers"
    if times > 1:
        note += f"; the rate is among {SAMPLE_CAPTIONS:,} captions, and falls with their number"
    return Estimate(
        inputs={"--pairs": f"{num_pairs:,} pairs"},
        most_bytes=output_bytes(num_pairs, top),
        seconds=seconds,
        rate=rate,
        note=note,
    )
