"""Loads batches from tables. The modules are listed in the order in which a row passes them.

Reading order: ``store`` (tables joined and tokenised once, with a ``vocabulary`` and the
``tokenizer_files`` next to it), ``order`` (which pairs a stage visits, in which order), ``mixture``
(how often), ``pairing`` (with which image), ``random`` (counter-based random numbers), ``masking``,
``boxes``, ``sample`` (one masked pair, and where its features are stored), ``joined_regions`` (with
annotated ones), ``images``, ``arrays``, ``collate`` (samples to a batch), ``undecodable`` (images
that cannot be decoded), ``batch``, ``features`` (copied from the mapped files), ``stage_batches``,
``pretrain_batches``, ``loader`` and ``budgets`` (batches padded to a few shapes).
"""
