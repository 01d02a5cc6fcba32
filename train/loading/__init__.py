"""Loading makes batches of tables; the order below is that in which a row passes its files.

Reading order: ``store`` (tables joined and tokenised once, by a ``vocabulary`` and the
``tokenizer_files`` next to it), ``visited_pairs`` (which pairs a stage visits), ``mixture`` (how
often), ``order`` (which comes when), ``pairing`` (with which image), ``random`` (numbers by
counting), ``masking``, ``boxes``, ``feature_store`` (where features are), ``joined_regions`` (with
annotated ones), ``sample`` (one pair, masked), ``images``, ``arrays``, ``collate`` (samples to a
batch), ``undecodable`` (images that cannot be read), ``batch``, ``features`` (copied from the
mapped files), ``stage_visits`` (the order of a stage), ``stage_batches``, ``pretrain_batches``,
``loader`` and ``budgets`` (batches padded to a few shapes).
"""
