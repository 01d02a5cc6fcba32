"""Computes the official accuracy of VQA, GQA, VizWiz and OK-VQA, and the soft score of training."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from vlmill.schemas.answers import clean_answer, make_label, process_answer
from vlmill.train.tasks.scores import Figures, require_same_ids, share, shares_by_group

Id = TypeVar("Id", bound=int | str)

AGREEING = 3  # annotators, other than the excluded one, whose agreement makes an answer right

_processed = lru_cache(maxsize=1 << 16)(process_answer)  # a few answers are most of millions


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """Holds the annotators' answers to a question, and its types.

    ``answers`` are as the annotators typed them. ``annotators`` identifies the author of each: an
    answer that one annotator repeats counts once. None: all are different people, as in the
    released files. ``source`` is the data set. ``entailed_ids`` are the questions that a right
    answer answers too, and ``is_counted`` is false for GQA's questions outside its balanced part.
    """

    answers: tuple[str, ...]
    question_type: str | None = None
    answer_type: str | None = None
    annotators: tuple[Hashable, ...] | None = None
    source: str | None = None
    entailed_ids: tuple[str, ...] = ()
    is_counted: bool = True


# Sources whose questions have one right answer, or several that are all right: an answer is right
# if it equals one of them. The others have ten annotators and VQA's accuracy.
ANY_RIGHT_SOURCES = ("gqa", "own", "vgqa")


@dataclass(frozen=True, kw_only=True)
class VqaScores(Generic[Id]):
    """Holds each question's accuracy, 0..1, and its types."""

    by_question: Mapping[Id, float]
    annotations: Mapping[Id, Annotation]

    def figures(self, split: str) -> Figures:
        """Returns ``vqa/SPLIT/accuracy`` with its error and count, and the same by
        ``answer_type/TYPE``, ``question_type/TYPE`` and, of several data sets, ``source/SOURCE``;
        ``vqa/SPLIT/consistency`` where questions entail others.
        """
        name = f"vqa/{split}/accuracy"
        counted = {k: v for k, v in self.by_question.items() if self.annotations[k].is_counted}
        figures = share(name, list(counted.values()))
        kinds = ["answer_type", "question_type"]
        if len({self.annotations[key].source for key in counted}) > 1:
            kinds.append("source")
        for kind in kinds:
            types = {key: getattr(self.annotations[key], kind) for key in counted}
            figures |= shares_by_group(f"{name}/{kind}", counted, types)
        if any(annotation.entailed_ids for annotation in self.annotations.values()):
            figures |= share(f"vqa/{split}/consistency", self.consistency())
        return figures

    def consistency(self) -> list[float]:
        """Returns GQA's consistency (arXiv:1902.09506, sec. 4.4) of each right answer to a counted
        question: the share of right answers among the questions that it entails. Unanswered
        questions are omitted.
        """
        shares = []
        for key, score in self.by_question.items():
            annotation = self.annotations[key]
            entailed = [e for e in annotation.entailed_ids if e != key and e in self.by_question]
            if score == 1 and annotation.is_counted and entailed:
                shares.append(float(np.mean([self.by_question[e] for e in entailed])))  # type: ignore[index]
        return shares


def accuracy(predictions: Mapping[Id, str], annotations: Mapping[Id, Annotation]) -> VqaScores[Id]:
    """Returns the official accuracy of every question, joined by its id.

    Raises InputError for missing and surplus ids.
    """
    require_same_ids(predictions.keys(), annotations.keys(), "predictions")
    return VqaScores(
        by_question={key: score_answer(predictions[key], a) for key, a in annotations.items()},
        annotations=annotations,
    )


def score_answer(prediction: str, annotation: Annotation) -> float:
    """Returns the accuracy of an answer, 0..1, as the question's data set defines it."""
    if annotation.source not in ANY_RIGHT_SOURCES:
        return question_accuracy(prediction, annotation)
    return float(make_label(prediction) in set(map(make_label, annotation.answers)))


def question_accuracy(prediction: str, annotation: Annotation) -> float:
    """Returns min(1, agreeing others / 3), 0..1, as the mean over annotators excluded in turn.

    Where all answers are identical, nothing is processed (the official code's rule): "Yes" against
    ten times "yes" is wrong. Raises ValueError without an answer.
    """
    if not annotation.answers:
        raise ValueError("a question without answers has no accuracy; remove the question")
    answers = [clean_answer(answer) for answer in annotation.answers]
    prediction = clean_answer(prediction)
    if len(set(answers)) > 1:
        answers, prediction = [_processed(answer) for answer in answers], _processed(prediction)
    who = annotation.annotators or tuple(range(len(answers)))
    agreeing = answers.count(prediction)
    total = 0.0
    for (answer, _), count in Counter(zip(answers, who, strict=True)).items():
        num_others = agreeing - (count if answer == prediction else 0)
        total += count * min(1.0, num_others / AGREEING)
    return total / len(answers)


def soft_scores(
    predictions: Mapping[Id, int], targets: Mapping[Id, Mapping[int, float]]
) -> dict[Id, float]:
    """Returns each question's target, 0..1, at the label that was predicted; 0 where it has none.

    A question without any label counts, with 0, as in ViLBERT and VL-BERT; VLMo excludes it. Raises
    InputError for missing and surplus ids.
    """
    require_same_ids(predictions.keys(), targets.keys(), "predictions")
    return {key: target.get(predictions[key], 0.0) for key, target in targets.items()}


def soft_score(
    predictions: Mapping[Id, int], targets: Mapping[Id, Mapping[int, float]], split: str
) -> Figures:
    """Returns ``vqa/SPLIT/soft_score``, the mean of :func:`soft_scores`, its error and count."""
    scores = np.array(list(soft_scores(predictions, targets).values()))
    return share(f"vqa/{split}/soft_score", scores)
