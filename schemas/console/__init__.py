"""All commands share this shell.

Reading order: ``command`` (arguments, exit statuses, one-line errors), ``progress``, ``report``
(pages in HTML) and ``memory``.
"""
