"""Published data sets, a file each: its layout, and what its rows become.

To add one, write such a file and its line in ``SETS``.
"""

from vlmill.pipelines.manifest.entries import DataSet
from vlmill.pipelines.manifest.sets import conceptual_captions

SETS: dict[str, DataSet] = {
    "cc": conceptual_captions.CC3M,
    "cc3m": conceptual_captions.CC3M,
    "cc12m": conceptual_captions.CC12M,
}
