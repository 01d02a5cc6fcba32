"""Repeats the papers' ablations on the generated world: every row with its published figures.

``row.py`` says what a table, a row and a figure are; a file a paper has its tables; ``compare.py``
trains and measures a row, by the runs of ``proof/``, and asks whether it moves as it did in the
paper; ``page.py`` writes that down.
"""

from published.imagebert import imagebert_tables
from published.interbert import interbert_tables
from published.row import AblationTable
from published.vilbert import vilbert_tables
from published.vlbert import vlbert_tables
from published.vlmo import vlmo_tables


def all_tables() -> tuple[AblationTable, ...]:
    """Every table, paper by paper."""
    return (
        *vilbert_tables(),
        *vlbert_tables(),
        *imagebert_tables(),
        *interbert_tables(),
        *vlmo_tables(),
    )


__all__ = ["AblationTable", "all_tables"]
