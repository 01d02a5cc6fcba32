"""Which function compares a set: by part, then by family."""

from collections.abc import Callable

import torch
from tests.parity import detector_families, detectors, models_interbert, models_vilbert, operators
from tests.parity.detector_training_sets import detector_training
from tests.parity.evaluation import evaluation
from tests.parity.finetuning import FINETUNING
from tests.parity.golden import GoldenSet, NotComparable, naming
from tests.parity.models_beit import beit
from tests.parity.models_dvae import dvae
from tests.parity.models_vlbert import vlbert
from tests.parity.models_vlmo import vlmo
from tests.parity.results import Results
from tests.parity.training import TRAINING

Handler = Callable[[GoldenSet, Results], None]

HANDLERS: dict[str, dict[str, Handler]] = {
    "detector": {
        "airsplay": detectors.airsplay,
        "caffe": detector_families.caffe_file,
        "detectron2": detectors.detectron2,
        "detectron2-fpn": detector_families.detectron2_fpn,
        "grid-feats": detector_families.grid_feats,
        "hf-frcnn": detectors.hf_frcnn,
        "milvlg": detectors.milvlg,
        "operators": operators.operators,
        "vinvl": detector_families.vinvl,
        "vqa-maskrcnn": detector_families.vqa_maskrcnn,
    },
    "detector-training": {"frcnn": detector_training},
    "models": {
        "vl-bert": vlbert,
        "beit": beit,
        "dvae": dvae,
        "vlmo": vlmo,
        "interbert": models_interbert.interbert,
        "vilbert": models_vilbert.vilbert,
    },
    "training": TRAINING,
    "finetuning": FINETUNING,
    "evaluation": {"evaluation": evaluation},
}


def compare(golden: GoldenSet) -> dict[str, object]:
    """The report of one set: status, reason, and the deviation of each recorded tensor."""
    results = Results(golden)
    threads = torch.get_num_threads()
    # The recordings were made so: with two threads res4 of R-101 moves by more than it may.
    torch.set_num_threads(1)
    try:
        handler = HANDLERS.get(golden.part, {}).get(golden.family)
        if handler is None:
            raise NotComparable(
                f"{golden.root}/index.json: sets.{golden.name} is of part {golden.part} and family "
                f"{golden.family}, for which there is no comparison"
            )
        with naming(golden.folder):
            handler(golden, results)
    except Exception as error:  # any failure is the set's, and the report has to be written
        results.fail(error)
    finally:
        torch.set_num_threads(threads)
    try:
        results.finish()
    except Exception as error:  # recordings that cannot even be read
        results.fail(error)
    if not results.tensors:
        results.tensors["cases"] = {"max_abs": None, "allowed": 0.0, "ok": False}
        results.complaints.append("nothing was compared")
    return {
        "status": "failed" if results.complaints else "passed",
        "reason": "; ".join(results.complaints),
        "tensors": results.tensors,
        "exchanges": results.exchanges,
        "left_out": results.left_out,
    }
