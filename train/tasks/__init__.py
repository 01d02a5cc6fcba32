"""Tasks define the inputs of a model, the predictions read from it, and their metrics.

Reading order: ``task`` (the interface of a task to the code that trains and evaluates), ``rows``
and ``registry`` (its entry on the command line), then one of the tasks: ``vqa``,
``classification``, ``entailment``, ``vcr``, ``refcoco``, ``nlvr2``, ``glue``, ``retrieval``.
``finetuning`` trains them, ``evaluating`` measures them by ``command``. They share ``batches``,
``heads`` and ``vlbert_texts`` (inputs), ``recipes`` (each paper's runs), ``scores`` and
``published`` (papers' figures), ``weights`` and ``report``.
"""
