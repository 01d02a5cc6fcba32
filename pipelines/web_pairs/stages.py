"""Defines the stages of the web-pairs funnel, in their order."""

from vlmill.runtime.units.funnel import Stage

ARCHIVES = Stage("archives", "archives")
RECORDS = Stage("records", "records")
REDIRECTS = Stage("redirects", "redirects")
PAGES = Stage("pages", "pages")
LANGUAGE = Stage("language", "pages")
PARSE = Stage("parse", "pages")
IMAGES = Stage("pictures", "pictures")
INLINE_IMAGES = Stage("inline_pictures", "images in pages")
JOIN = Stage("join", "images on pages")
DOMINANT = Stage("dominant", "images on pages")
TEXTS = Stage("texts", "images on pages")
EXCLUDE = Stage("exclude", "pairs")
BEST_TEXT = Stage("best_text", "pairs")
SHARED_TEXT = Stage("shared_text", "pairs")
DECODE = Stage("decode", "pairs")
NEAR_DUPLICATES = Stage("near_duplicates", "pairs")

STAGES = (
    ARCHIVES,
    RECORDS,
    REDIRECTS,
    PAGES,
    LANGUAGE,
    PARSE,
    IMAGES,
    INLINE_IMAGES,
    JOIN,
    DOMINANT,
    TEXTS,
    EXCLUDE,
    BEST_TEXT,
    SHARED_TEXT,
    DECODE,
    NEAR_DUPLICATES,
)
