"""Reads sites with labelled images, counts correct texts, and fits the weights of the choice."""
