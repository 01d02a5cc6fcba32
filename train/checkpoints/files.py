"""Writes and reads checkpoints: folders with all that training or evaluating needs, without
pickles.

A run's output holds ``checkpoints/step-00000100/`` and so on, each with ``model.safetensors``,
``vocab.txt`` (and ``tokenizer_config.json`` where that alone does not define how texts are
prepared), ``checkpoint.json`` (variant, configuration, detector, training record, the stage's
feeding, the run's inputs, size and SHA-256 of the other files), ``trained_pairs.npy`` and
``trained_images.npy`` (hashes of the pairs and images that it was trained on) and
``training_state.safetensors`` (optimiser moments, random state). A folder appears by a rename. A
finished run has the files that evaluation needs at its top, too.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import init_empty_weights
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.models import MODELS
from vlmill.models.registry import get_variant
from vlmill.runtime.files.atomic import atomic_folder, link_file
from vlmill.runtime.files.checkpoints import TRAINED_IMAGES, TRAINED_PAIRS
from vlmill.runtime.files.inputs import Input, make_records
from vlmill.runtime.files.listed import FILE_RECORD, parse_record, record_files, require_unchanged
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.shards import SOFTWARE
from vlmill.runtime.readers.trained_on import mapped_keys
from vlmill.runtime.settings.plain_fields import from_plain, to_plain
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.train.checkpoints.detector import detector_words
from vlmill.train.checkpoints.folders import (
    MODEL,
    SETTINGS,
    STATE,
    TOKENIZER,
    VOCABULARY,
    find_checkpoint,
)
from vlmill.train.loading.arrays import Keys
from vlmill.train.loading.features import get_global_widths
from vlmill.train.loading.vocabulary import read_vocabulary, vocabulary_contents
from vlmill.train.settings.parts import Feeding

# The files of a checkpoint that evaluation and --init read; the settings, last, mark it complete.
PUBLISHED = (MODEL, VOCABULARY, TOKENIZER, TRAINED_PAIRS, TRAINED_IMAGES, SETTINGS)
FORMAT = 1
NO_KEYS: Keys = np.empty(0, np.uint64)


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """Records the training data of the weights: steps of a recipe's stage, and the pairs' digest.

    ``pairs_digest`` is :class:`vlmill.train.loading.store.pairs.PairsDigest` of the pairs, in their
    order. ``validation_loss`` or, of a task with a metric, ``validation_score`` is of the held-out
    pairs, where they were measured at this step.
    """

    recipe: str
    stage: str
    step: int
    num_pairs: int
    pairs_digest: str | None = None
    validation_loss: float | None = None
    validation_score: float | None = None

    @property
    def validation(self) -> float | None:
        """Returns the loss or the score of the held-out pairs."""
        return self.validation_loss if self.validation_score is None else self.validation_score


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedOn:
    """Holds sorted 64-bit hashes (:func:`vlmill.schemas.ids.key64`), each once, of the ``pairs``
    and of the ``images`` that weights were trained on: uint64 [P], [I].

    An evaluation finds which of its pairs are among them, regardless of their table.
    ``complete`` is true if the weights that training began with recorded theirs, too; random
    weights have none.
    """

    pairs: Keys = field(default_factory=lambda: NO_KEYS)
    images: Keys = field(default_factory=lambda: NO_KEYS)
    complete: bool = True

    def and_also(self, pairs: Keys, images: Keys) -> "TrainedOn":
        """Returns these hashes with further ones, which may come in any order."""
        return TrainedOn(
            pairs=np.union1d(self.pairs, pairs),
            images=np.union1d(self.images, images),
            complete=self.complete,
        )

    def write(self, folder: Path) -> None:
        """Writes both files."""
        np.save(folder / TRAINED_PAIRS, self.pairs)
        np.save(folder / TRAINED_IMAGES, self.images)


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """Records the task that a checkpoint was fine-tuned for.

    ``labels`` are the meanings of its head's outputs, in their order, where the data decide that:
    VQA's answers. A ``blind`` model was shown no image. ``settings`` are the task's own fields of
    the recipe, plain.
    """

    name: str
    labels: tuple[str, ...] = ()
    blind: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """Holds a checkpoint's record of its model.

    ``variant`` is a name of `vlmill.models.MODELS`. ``detector_fingerprint`` names the detector
    whose regions it was trained on, None if unknown; ``detector`` is its description by its
    producer (architecture, selection, sizes, storage). ``feeding`` is the feeding of its last
    stage; None for a model that was never trained here. ``trained_on`` is of that stage and all
    before; None where the checkpoint does not record it: converted, or older than that. ``task`` is
    None if the checkpoint was pretrained or converted.
    """

    variant: str
    tokenizer: Tokenizer
    training: TrainingRecord
    detector_fingerprint: str | None = None
    feeding: Feeding | None = None
    trained_on: TrainedOn | None = None
    detector: Mapping[str, Any] | None = None
    task: TaskRecord | None = None


@dataclass(frozen=True, kw_only=True)
class LoadedCheckpoint(CheckpointRecord):
    """Holds a checkpoint read back: ``model`` on the CPU in evaluation mode, ``config`` its own."""

    path: Path
    model: Any  # the variant's module; its methods differ by variant
    config: Any

    @cached_property
    def body(self) -> Any:
        """Returns the configuration of the part that reads texts and images, below a task's
        heads.
        """
        return get_variant(self.variant).get_body(self.config)

    @cached_property
    def takes_global_features(self) -> bool:
        """Returns whether the model takes features of full images in addition to regions."""
        return bool(get_global_widths(self.body))


def save_checkpoint(
    folder: str | Path,
    model: nn.Module,
    record: CheckpointRecord,
    *,
    inputs: Sequence[Input] = (),
    state: Mapping[str, Tensor] | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> Path:
    """Writes a checkpoint to ``folder``, which appears complete or not at all.

    ``model.config`` must be the variant's configuration. ``inputs`` are the run's inputs, ``state``
    is the state for continuing. ``weights`` are written instead of the model's.
    """
    detector, task, feeding = record.detector, record.task, record.feeding
    trained_on = record.trained_on
    settings = {
        "checkpoint": FORMAT,
        "software": SOFTWARE,
        "variant": record.variant,
        "model": to_plain(model.config),
        "detector_fingerprint": record.detector_fingerprint,
        "detector": None if detector is None else dict(detector),
        "inputs": make_records(inputs, folder),
        "training": to_plain(record.training),
        "task": None if task is None else to_plain(task),
        "feeding": None if feeding is None else to_plain(feeding),
        "trained_on": None if trained_on is None else {"complete": trained_on.complete},
    }
    with atomic_folder(folder, replace=True, last=SETTINGS) as temporary:
        save_tensors(model.state_dict() if weights is None else weights, temporary / MODEL)
        if state is not None:
            save_tensors(state, temporary / STATE)
        if trained_on is not None:
            trained_on.write(temporary)
        for name, text in vocabulary_contents(record.tokenizer).items():
            (temporary / name).write_text(text, encoding="utf-8", newline="")
        settings[FILE_RECORD] = record_files(temporary, [path.name for path in temporary.iterdir()])
        (temporary / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        for path in temporary.iterdir():
            shutil.copymode(temporary / SETTINGS, path)  # safetensors: owner-only access
    return to_path(folder)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes safetensors. Raises OSError, which the library does not."""
    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from None


def load_checkpoint(
    path: str | Path, flag: str = "--checkpoint", *, trust: bool | None = None
) -> LoadedCheckpoint:
    """Reads a checkpoint, or the last one of a run's output. Raises InputError if it is damaged.

    Its files are compared with the SHA-256 that it records, about a second a GB; ``trust`` skips
    that (None: as the command's flags specify). A checkpoint of an older vlmill records none.
    """
    folder = find_checkpoint(path, flag)
    try:
        settings = read_json(folder / SETTINGS)
        if settings["checkpoint"] != FORMAT:
            raise InputError(
                f"{flag} {folder} has format {settings['checkpoint']}, this vlmill reads {FORMAT}"
            )
        variant = settings["variant"]
        if variant not in MODELS:
            raise InputError(
                f"{flag} {folder}: variant {variant!r} is not one of {', '.join(MODELS)}"
            )
        config = from_plain(MODELS[variant].config, settings["model"], "model")
        training = from_plain(TrainingRecord, settings["training"], "training")
        fed, task, detector = (settings.get(name) for name in ("feeding", "task", "detector"))
        if detector is not None and not isinstance(detector, dict):
            raise ValueError("detector must be an object or null")
        feeding = None if fed is None else from_plain(Feeding, fed, "feeding")
        files = [file for file in parse_record(settings.get(FILE_RECORD)) if file.name != STATE]
        require_unchanged(folder, files, f"{flag} {folder}", trust=trust)
        # Weights come from the file, so none are initialised. Buffers may be missing in the file.
        with init_empty_weights(include_buffers=False):
            model = MODELS[variant].model(config)
        model.load_state_dict(_load_aligned(folder / MODEL), assign=True)
        trained_on = settings.get("trained_on")
        if trained_on is not None:
            trained_on = read_trained_on(folder, complete=trained_on["complete"] is True)
        return LoadedCheckpoint(
            path=folder,
            variant=variant,
            model=model.eval(),
            config=config,
            tokenizer=read_vocabulary(folder / VOCABULARY, flag),
            detector_fingerprint=settings["detector_fingerprint"],
            training=training,
            feeding=feeding,
            trained_on=trained_on,
            detector=detector,
            task=None if task is None else from_plain(TaskRecord, task, "task"),
        )
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{flag} {folder} is damaged ({reason}); use another checkpoint") from None


def read_model_config(path: str | Path, flag: str) -> Any:
    """Returns the configuration of the model in a checkpoint, or in the last one of a run's output,
    without its weights. Raises InputError if it is damaged.
    """
    folder = find_checkpoint(path, flag)
    try:
        settings = read_json(folder / SETTINGS)
        return from_plain(MODELS[settings["variant"]].config, settings["model"], "model")
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{flag} {folder} is damaged ({reason}); use another checkpoint") from None


def read_trained_on(folder: Path, *, complete: bool) -> TrainedOn:
    """Maps the files of :meth:`TrainedOn.write`. Raises OSError or ValueError for other files."""
    return TrainedOn(
        pairs=mapped_keys(folder / TRAINED_PAIRS),
        images=mapped_keys(folder / TRAINED_IMAGES),
        complete=complete,
    )


def require_detector(fingerprint: str | None, checkpoint: LoadedCheckpoint, flag: str) -> bool:
    """Returns whether ``--regions`` and the checkpoint are known to come from one detector.

    Raises InputError if they are known to come from two.
    """
    expected = checkpoint.detector_fingerprint
    if fingerprint is not None and expected is not None and fingerprint != expected:
        words = detector_words(checkpoint.detector)
        raise InputError(
            f"--regions come from detector {fingerprint[:16]}, {flag} {checkpoint.path} was "
            f"trained on {expected[:16]}{f' ({words})' if words else ''}; extract the regions with "
            "that detector, or use another checkpoint"
        )
    return fingerprint is not None and expected is not None


def publish(output: str | Path, checkpoint: Path) -> None:
    """Puts the files that evaluation needs from a run's checkpoint at the top of ``output``, as
    links.
    """
    for name in PUBLISHED:
        if name != TOKENIZER or (checkpoint / name).is_file():
            link_file(checkpoint / name, Path(output) / name)


def load_training_state(folder: str | Path) -> dict[str, Tensor]:
    """Loads the tensors for continuing, as ``save_checkpoint`` was given them.

    Raises InputError if they are missing, or differ from the checkpoint's record.
    """
    folder = Path(folder)
    try:
        files = parse_record(read_json(folder / SETTINGS).get(FILE_RECORD))
        state = [file for file in files if file.name == STATE]
        require_unchanged(folder, state, f"--output: {folder}")
        return _load_aligned(folder / STATE)
    except (OSError, ValueError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{folder}: no training state ({error}); use --fresh") from None


def _load_aligned(path: Path) -> dict[str, Tensor]:
    """Loads the file's tensors, copied to memory that torch has aligned.

    Mapped from the file they begin anywhere, and vectorised sums over them may then differ in the
    last bit from the sums of the run that wrote them.
    """
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def read_record(folder: Path) -> TrainingRecord:
    """Reads a checkpoint's record of its training. Raises InputError if it is damaged."""
    try:
        settings = read_json(folder / SETTINGS)
        return from_plain(TrainingRecord, settings["training"], "training")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"--output: {folder} is damaged ({error}); use --fresh") from None
