"""Provides pure functions for web pages, shared by the jobs that read them.

Reading order: ``archives`` (WARC and other containers), ``pages`` (images and texts of a page),
``texts`` (cleaning), ``choice`` (the text of each image), ``fetching`` (polite downloads).
"""
