"""vlmill: from web pages to vision-and-language transformers.

The subpackages are the folders at the top of the repository; those here are links to them.
"""

__version__ = "0.1.0"
