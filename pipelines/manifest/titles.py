"""Cleans item titles in Chinese by the rules of TaoMultimodal (InterBERT, arXiv:2003.13198)."""

import re
from dataclasses import dataclass

from vlmill.pipelines.web.texts.lists import TextLists
from vlmill.pipelines.web.texts.words import chinese_words
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

MAX_CHARACTERS = 36  # characters of a title, without spaces
_CHINESE = re.compile("[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff]")


@dataclass(frozen=True, kw_only=True)
class TitleRules:
    """Holds the rules of titles; ``lists`` has the words and phrases of spam, if any."""

    lists: TextLists


def clean_title(title: str, rules: TitleRules) -> str | Drop:
    """Returns a title's first words, up to 36 characters, or why the title is dropped.

    The paper's segmenter is AliNLP; this function uses jieba's. A longer first word is cut.
    """
    if not _CHINESE.search(title):
        return Drop(Reason.OTHER_LANGUAGE, "no Chinese character")
    blocked = rules.lists.blocks(title, "zh")
    if blocked is not None:
        return Drop(Reason.BLOCKED_WORD, blocked)
    words = [word for part in title.split() for word in chinese_words(part)]
    return " ".join(first_words(words))


def first_words(words: list[str]) -> list[str]:
    """Returns the first words with at most 36 characters together."""
    if words and len(words[0]) > MAX_CHARACTERS:
        return [words[0][:MAX_CHARACTERS]]
    prefix, length = [], 0
    for word in words:
        length += len(word)
        if length > MAX_CHARACTERS:
            break
        prefix.append(word)
    return prefix
