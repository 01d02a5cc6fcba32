"""Generates worlds: images, captions and regions with known content.

``scenes.py`` says what is in an image and what its caption states, ``images.py`` draws it,
``detector.py`` gives its regions, ``oracles.py`` computes how well a matcher could do that sees
only a part, ``writing.py`` writes tables, also of captions in other words and of pairs whose
captions went astray.
"""

from worlds.detector import Detector
from worlds.oracles import oracles, views
from worlds.scenes import Scene, Split, World, make_scenes, word_groups
from worlds.writing import MOST, NOISY, write_boxes, write_noisy_pairs, write_world

__all__ = [
    "MOST",
    "NOISY",
    "Detector",
    "Scene",
    "Split",
    "World",
    "make_scenes",
    "oracles",
    "views",
    "word_groups",
    "write_boxes",
    "write_noisy_pairs",
    "write_world",
]
