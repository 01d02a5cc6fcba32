"""Tasks define what is fed to a model, what is read from it, and how good that is.

Reading order: ``task`` (what a task is to the code that learns and evaluates), ``rows`` and
``registry`` (what the command line knows of it), then one of them:
``vqa``, ``vcr``, ``refcoco``, ``nlvr2``, ``glue``, ``retrieval``. ``finetuning`` learns them,
``evaluating`` measures them by ``command``. They share ``batches``, ``mirrored_texts`` and
``vlbert_texts`` (what is fed), ``scores`` and ``published`` (papers' figures), ``weights``,
``report`` and ``case_drawing`` (the examples of a report).
"""
