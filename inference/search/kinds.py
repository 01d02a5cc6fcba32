"""Defines the kinds of vectors, the values of that column."""

IMAGE, TEXT, PAIR = "image", "text", "pair"
