"""Reads OK-VQA, questions that need outside knowledge, in the layout of VQA v1."""

import functools

from vlmill.pipelines.manifest.entries import DataSet
from vlmill.pipelines.manifest.labels import add_labels
from vlmill.pipelines.manifest.sets.vqa import VERSIONS, Version, open_vqa
from vlmill.schemas.tables import QUESTIONS

VERSION = Version(
    source="okvqa",
    questions=VERSIONS["vqa1"].questions,
    annotations=VERSIONS["vqa1"].annotations,
    rows={"train2014": 9_009, "val2014": 5_046},
    min_questions=2,
)

OKVQA = DataSet(
    about="""\
OK-VQA (Marino et al. 2019) as `questions`: OpenEnded_mscoco_train2014_questions.json,
mscoco_train2014_annotations.json and the two files of val2014, or the published zip archives, of
the data set's page (okvqa.allenai.org), and COCO's images in train2014/, val2014/ or --images. The
files are named like VQA v1's; both must not be in one folder. question_type is the category of
knowledge, as published. Each of five annotators' answers counts twice, as published, and the
official metric is VQA's accuracy. Without --labels the list has the answers of two or more
questions.""",
    tables=(QUESTIONS,),
    open=functools.partial(open_vqa, VERSION),
    add_arguments=add_labels,
)
