"""This job finds hard negatives of pairs.

Reading order: ``command`` (the flags), ``rules``, ``plan``, ``job`` and ``steps``;
then what the steps do: ``source`` and ``captions`` read, ``tokens`` and ``vectors`` count words,
``index`` lays them out in ``arrays``, ``kernel`` searches them by bounds and exact ``scores``
with a thread's ``state``, all of it ``compiled``, ``blocks`` merges lists.
``cost`` estimates a run.
"""
