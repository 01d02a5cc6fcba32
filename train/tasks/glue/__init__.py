"""Holds GLUE's eight tasks on texts, with which InterBERT measures how much of BERT remains."""
