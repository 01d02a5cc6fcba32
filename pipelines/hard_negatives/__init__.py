"""This job finds hard negatives of pairs.

Reading order: ``command`` (the flags), ``rules``, ``plan``, ``job`` and ``graph``, which has its
pipelines; then what it does: ``source`` and ``captions`` read, ``tokens`` and ``vectors`` count
words, ``index`` lays them out in ``arrays``, ``kernel`` searches them by ``bounds`` and exact
``scores``, ``blocks`` brings that to Beam, ``finish`` ends a run.
"""
