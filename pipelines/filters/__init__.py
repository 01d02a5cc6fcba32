"""Scores images and pairs with models that are fitted on small labelled sets.

Reading order: ``flags`` (flags of the web-pairs job); ``statistics``, ``backbone`` and ``image``
(image filters); ``text_features``, ``region_features``, ``scorer``, ``facts`` and ``agreement``
(scores of pairs); ``labels``, ``fitting``, ``trees``, ``model_file`` and ``fit_report`` (fitting of
both).
"""
