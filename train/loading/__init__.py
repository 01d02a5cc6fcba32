"""Loading makes batches of tables; its files are in the order of a row's way.

Reading order: ``store`` (tables joined and tokenised once, by a ``vocabulary`` and the
``tokenizer_files`` beside it), ``chosen`` (which pairs a stage visits), ``mixture`` (how often),
``order`` (which comes when), ``pairing`` (with which image), ``random`` (numbers by counting),
``masking``, ``boxes``, ``stored`` (where features lie), ``joined`` (with annotated ones),
``sample`` (one pair, masked), ``images``, ``arrays``, ``collate`` (samples to a batch),
``undecodable`` (what images lack), ``batch``, ``features`` (copied from the mapped files),
``stage_batches``, ``pretrain_batches`` and ``loader``.
"""
