"""Images and pairs are judged here, by models that are fitted on small labelled sets.

Reading order: ``flags`` (what the job of web pairs asks for); ``statistics``, ``backbone`` and
``image`` (filters of images); ``text_features``, ``region_features``, ``scorer``, ``facts`` and
``agreement`` (scores of pairs); ``labels``, ``fitting``, ``trees``, ``model_file`` and
``fit_report`` (how both are fitted).
"""
