"""vlmill: from web pages to vision-and-language transformers.

The subpackages are the folders at the top of the repository; those here are links to them. What
takes time to import waits for the first call.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

    from vlmill.inference.load.public import Pretrained

__version__ = "0.2.0"


def load(
    checkpoint: str | Path,
    *,
    detector: str | Path | None = None,
    labels: str | Path | None = None,
    device: str = "cpu",
    batch_size: int = 64,
    trust: bool = False,
) -> "Pretrained":
    """Loads a checkpoint for raw images (paths, bytes, open files, PIL images, arrays, tensors) and
    strings: the object scores, embeds, answers, grounds, classifies, entails and explains.

    ``checkpoint`` is what `train-vl pretrain`, `finetune` or `convert` wrote: a folder,
    ``hf://OWNER/NAME[@REVISION]`` or ``https://HOST/FOLDER/``. ``detector`` is the file of the
    detector whose regions it was trained on, or a name of one as `extract-rois run --weights` takes
    it; random weights are drawn again from their seed.
    ``labels`` are the answers of a converted model of VQA, a line each. The files are compared with
    the SHA-256 that the checkpoint records, about a second a GB; ``trust`` skips that.

    Raises InputError, a ValueError, for what cannot be used together.
    """
    from vlmill.inference.load.model import load_pretrained
    from vlmill.inference.load.public import Pretrained

    return Pretrained(
        load_pretrained(checkpoint, detector, labels, device, batch_size, trust=trust)
    )


def open_table(table: str | Path, name: str) -> "Dataset":
    """Opens a table of a job's folder (or a file, or a glob) as a dataset of pyarrow.

    ``name`` is that of the table: "pairs", "images", "regions", ... Raises InputError where there
    is none.
    """
    from vlmill.runtime.files.reading import open_dataset

    return open_dataset(table, name)
