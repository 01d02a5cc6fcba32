"""Defines the error that a user can fix, and the error of a store that does not respond."""


class InputError(ValueError):
    """Reports a user's mistake: the message has the argument or file, its value, the remedy."""


class StoreFailed(Exception):
    """Reports that an object store still fails after many retries.

    It is not an OSError, because callers treat those as damaged or missing files.
    """


def with_article(name: str) -> str:
    """Returns a name with its article for messages: a vilbert, an imagebert."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
