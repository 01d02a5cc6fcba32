"""Tasks say what is fed to a model, what is read from it, and what it is worth.

Reading order: ``task`` (what a task is to the code that learns and evaluates), then one of them:
``vqa``, ``vcr``, ``refcoco``, ``nlvr2``, ``glue``, ``retrieval``. ``finetuning`` learns them,
``evaluating`` measures them by ``command``; ``search`` uses what was learnt. They share
``batches``, ``mirrored`` and ``vlbert_texts`` (what is fed), ``scores`` and ``published`` (papers'
figures), ``weights``, ``report`` and ``drawn_cases`` (what is shown).
"""
