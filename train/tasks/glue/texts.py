"""Makes of one text, or of two, what a classifier reads: [CLS] a [SEP], or [CLS] a [SEP] b [SEP].

T tokens.
"""

from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.vocabulary import CLS, SEP
from vlmill.train.tasks.vcr.texts import cut_pair


def encode_text(text: str, words: Tokenizer) -> list[int]:
    """Returns a text's word pieces, without [CLS] and [SEP]."""
    ids: list[int] = words.encode(text, add_special_tokens=False).ids
    return ids


def join_texts(
    first: Sequence[int], second: Sequence[int] | None, words: Tokenizer, longest: int
) -> tuple[Ids, int]:
    """Returns at most ``longest`` tokens int64 [T], and how many of them are of segment 0.

    Of two texts the longer one is cut at its end, token by token; its [SEP] stays, as all of them
    do (arXiv:1810.04805, released code). ``longest`` is 4 at least.
    """
    cls, sep = words.token_to_id(CLS), words.token_to_id(SEP)
    if second is None:
        ids = list(first[: longest - 2])
        return np.array([cls, *ids, sep], dtype=np.int64), len(ids) + 2
    num_first, num_second = cut_pair(first, second, longest - 3)
    tokens = [cls, *first[:num_first], sep, *second[:num_second], sep]
    return np.array(tokens, dtype=np.int64), num_first + 2
