"""Checks by one call whether a private function of a library works.

Such functions are faster than the public ones, but the next version of their library may remove or
change them. Callers use the public functions if the probe fails.
"""

from collections.abc import Callable

# Raised by a function that is missing or takes other arguments.
REFUSALS = (AttributeError, ImportError, NotImplementedError, RuntimeError, TypeError, ValueError)


def works(call: Callable[[], object]) -> bool:
    """Returns whether ``call`` returns a true value and does not raise one of ``REFUSALS``."""
    try:
        return bool(call())
    except REFUSALS:
        return False
