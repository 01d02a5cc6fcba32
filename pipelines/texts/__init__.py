"""Texts of pairs are cleaned, judged and scored here.

Reading order: ``words``, ``sentences``, ``balance``, ``personal`` and ``lists``, ``captions``
(which uses them all), ``language`` and ``scoring``.
"""
