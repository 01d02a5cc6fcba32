"""The tables and the recipe of the tests of training, for what is done with its checkpoints."""

from tests.train.conftest import fresh_accelerator, recipe, stage, tables

__all__ = ["fresh_accelerator", "recipe", "stage", "tables"]
