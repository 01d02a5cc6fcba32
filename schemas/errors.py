"""The error that a user can mend, and that of a store which does not answer."""


class InputError(ValueError):
    """Tells a user's mistake: the message names the argument or file, its value, and the remedy."""


class StoreFailed(Exception):
    """Tells that an object store fails, after it was asked for long: it is nobody's mistake.

    No OSError: what makes of those that a file is damaged or missing would be wrong.
    """


def with_article(name: str) -> str:
    """Puts the article before a name, as messages say it: a vilbert, an imagebert."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
