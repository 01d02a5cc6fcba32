"""This file holds the error that a user can mend."""


class InputError(ValueError):
    """Tells a user's mistake: the message names the argument or file, its value, and the remedy."""
