"""Classification of images, or of texts with images, by your own labels; one class or several.

Reading order: ``row``, ``settings``, ``examples`` (the classes of a table), ``task``, ``metrics``
and ``evaluation``. ``train.tasks.entailment`` is the same task on statements.
"""
