"""Finds hard negatives of pairs.

Reading order: ``__main__`` (the flags), ``rules``, ``plan`` and ``job`` (with its steps); then the
modules of the steps: ``source`` and ``captions`` read, ``tokens`` and ``vectors`` count words,
``index`` builds ``arrays``, ``kernel`` searches them by bounds and exact scores with a thread's
``state``, ``compiled`` compiles these, ``blocks`` merges lists.
"""
