"""The batches that a run's stages are trained and validated on."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accelerate import Accelerator
from tokenizers import Tokenizer

from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.features import global_widths_of
from vlmill.train.loading.loader import batch_loader
from vlmill.train.loading.masking.words import Lexicon
from vlmill.train.loading.stage_batches import PretrainBatches
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.recipes import Recipe
from vlmill.train.run.inputs import Sources
from vlmill.train.run.loop import StageRun
from vlmill.train.run.saving import HELD_OUT, PREPARED
from vlmill.train.run.validation import unaugmented


@dataclass(frozen=True, kw_only=True)
class RunBatches:
    """Makes batches of the samples that were prepared under ``output``."""

    recipe: Recipe
    sources: Sources
    output: Path
    tokenizer: Tokenizer
    accelerator: Accelerator

    def of_training(self, run: StageRun, done: int) -> Iterator[HostBatch]:
        """This process's parts of the stage's steps after ``done``, in order."""
        parts = run.stage.accumulation * self.accelerator.num_processes
        return iter(
            batch_loader(
                self._of(run, PREPARED),
                done * parts + self.accelerator.process_index,
                run.steps * parts,
                workers=self.recipe.workers,
                device=self.accelerator.device,
                every=self.accelerator.num_processes,
            )
        )

    def of_validation(self, run: StageRun) -> PretrainBatches:
        """The held-out pairs as the stage reads them, but for random changes to pictures."""
        return self._of(dataclasses.replace(run, stage=unaugmented(run.stage)), HELD_OUT)

    def num_held_out(self, run: StageRun) -> int:
        """How many pairs the stage can be validated on; 0 where the recipe never validates."""
        if not self.recipe.validate_every:
            return 0
        table = SampleTable(self.output / HELD_OUT)
        return len(table.rows_of(run.stage.sources, run.stage.feeding.kind))

    def _of(self, run: StageRun, folder: str) -> PretrainBatches:
        return PretrainBatches(
            samples=self.output / folder,
            regions=self.sources.regions,
            images=self.sources.images,
            stage=run.stage,
            stage_number=run.number,
            seed=self.recipe.seed,
            lexicon=Lexicon.of(self.tokenizer),
            processes=self.accelerator.num_processes,
            longest=self.recipe.max_text_tokens,
            global_features=bool(global_widths_of(self.recipe.model)),
        )
