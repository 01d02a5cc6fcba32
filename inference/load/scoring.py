"""Scores and embeds raw images and texts as ``train-vl evaluate`` and ``embed`` do.

I images, T texts, D width of the vectors. An invalid image or text has NaN, and a warning gives the
reason.
"""

from collections.abc import Sequence
from itertools import chain, groupby
from typing import Any

import numpy as np

from vlmill.inference.load.faults import warn_faults, without_words
from vlmill.inference.load.model import IMAGES_AT_ONCE, Floats, LoadedModel
from vlmill.inference.search.embedding_inputs import find_embedding_mode
from vlmill.runtime.readers.images import HeldImages
from vlmill.runtime.readers.regions import HeldRegions
from vlmill.schemas.errors import InputError, with_article
from vlmill.schemas.rejects import Reason
from vlmill.train.loading.arrays import Ids
from vlmill.train.tasks.retrieval.checks import select_ranking
from vlmill.train.tasks.retrieval.inputs import PixelImages, RegionImages
from vlmill.train.tasks.retrieval.job import get_max_elements
from vlmill.train.tasks.retrieval.matching import make_scorer, match_scores
from vlmill.train.tasks.retrieval.vectors import image_vectors, text_vectors


def score_each(
    model: LoadedModel, requests: Sequence[tuple[Sequence[bytes], Sequence[str]]]
) -> list[Floats]:
    """Scores every image of a request with every text of it, float32 [I, T]: logits of the matching
    head, or cosines if the model has a contrastive head.

    Computations on single images or texts, such as a detector's, run on those of all requests
    together. Raises InputError for a model without either head.
    """
    images, texts = [members for members, _ in requests], [members for _, members in requests]
    contents = list(chain(*images))
    if select_ranking(model.loaded) == "contrast":
        vectors = split_rows(encode_images(model, contents), images)
        words = split_rows(encode_texts(model, list(chain(*texts))), texts)
        return [
            image_block @ text_block.T
            for image_block, text_block in zip(vectors, words, strict=True)
        ]
    scores, tokens = list[Floats](), list[tuple[list[Ids], list[int]]]()
    positions = list[tuple[int, int]]()  # of each image: its request, and its row there
    for members, request_texts in zip(images, texts, strict=True):
        every, good = model.tokens(request_texts)
        warn_faults("text", without_words(len(request_texts), good))
        positions += [(len(scores), row) for row in range(len(members))]
        tokens.append(([every[index] for index in good], good))
        scores.append(np.full((len(members), len(request_texts)), np.nan, dtype=np.float32))
    scorer = make_scorer(model.loaded.model, get_max_elements(model.feeding))
    faults = dict[int, Reason]()
    for start in range(0, len(contents), IMAGES_AT_ONCE):
        block = contents[start : start + IMAGES_AT_ONCE]
        held = model.hold(
            {str(start + index): data for index, data in enumerate(block)}, model.feeding
        )
        fed = feed(model, held.regions or held.images)
        unread = {name: why for name in held.rows if (why := fed.fault(name)) is not None}
        good_ones = [(name, *positions[int(name)]) for name in held.rows if name not in unread]
        for request, request_entries in groupby(good_ones, lambda entry: entry[1]):
            names, _, rows = zip(*request_entries, strict=True)
            logits = match_scores(
                scorer,
                tokens[request][0],
                names,
                fed,
                device=model.device,
                batch_size=model.batch_size,
            )
            scores[request][np.ix_(rows, tokens[request][1])] = logits
        faults |= {int(name): why for name, why in (held.faults | unread).items()}
    warn_faults("image", faults)
    return scores


def encode_images(model: LoadedModel, contents: Sequence[bytes]) -> Floats:
    """Returns unit vectors of encoded images, float32 [I, D]. Raises InputError for a model that
    reads texts and images together.
    """
    _require_dual(model, "encode_images")
    vectors = np.full((len(contents), model.loaded.config.width), np.nan, dtype=np.float32)
    faults = dict[int, Reason]()
    for start in range(0, len(contents), IMAGES_AT_ONCE):
        block = contents[start : start + IMAGES_AT_ONCE]
        named = {str(start + index): data for index, data in enumerate(block)}
        embedded = image_vectors(
            model.loaded.model,
            list(named),
            PixelImages(HeldImages(named), model.feeding, model.decode),
            device=model.device,
            batch_size=model.batch_size,
        )
        for name, vector in embedded.vectors.items():
            vectors[int(name)] = vector
        faults |= {int(name): why for name, why in embedded.faults.items()}
    warn_faults("image", faults)
    return vectors


def encode_texts(model: LoadedModel, texts: Sequence[str]) -> Floats:
    """Returns unit vectors of texts, float32 [T, D]; products with image vectors rank them. Raises
    InputError for a model that reads texts and images together.
    """
    _require_dual(model, "encode_texts")
    tokens, good = model.tokens(texts)
    warn_faults("text", without_words(len(texts), good))
    vectors = np.full((len(texts), model.loaded.config.width), np.nan, dtype=np.float32)
    vectors[good] = text_vectors(
        model.loaded.model,
        [tokens[index] for index in good],
        device=model.device,
        batch_size=model.batch_size,
    )
    return vectors


def _require_dual(model: LoadedModel, what: str) -> None:
    if find_embedding_mode(model.loaded) != "dual":
        raise InputError(
            f"{what}: {with_article(model.loaded.variant)} reads a text and an image "
            "together, and has no vector of one alone; use score, or "
            "`train-vl embed` for vectors of pairs"
        )


def feed(model: LoadedModel, images: HeldImages | HeldRegions) -> PixelImages | RegionImages:
    """Returns images or regions as the model reads them with texts."""
    if isinstance(images, HeldImages):
        return PixelImages(images, model.feeding, model.decode)
    return RegionImages(images, model.feeding, global_features=model.loaded.takes_global_features)


def split_rows(values: Floats, owners: Sequence[Sequence[Any]]) -> list[Floats]:
    """Splits the rows of all requests by their ``owners``."""
    return np.split(values, np.cumsum([len(owner) for owner in owners])[:-1])
