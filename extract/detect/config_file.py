"""Reads configuration files of other projects: YAML and its base files."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmill.models.detector.configurations import (
    Configuration,
    flatten_sections,
    read_configuration,
)
from vlmill.models.detector.keys import Value, WrongKey
from vlmill.runtime.settings.plain_yaml import BadYaml, Document, read_document
from vlmill.schemas.errors import InputError

BASE = "_BASE_"
MAX_FILES = 16
MAX_BYTES = 1 << 18
SUFFIXES = (".yaml", ".yml")
GIVE = (
    "give the configuration file of Detectron2 (C4 or FPN), airsplay, MILVLG, Hugging "
    "Face's port, VinVL, vqa-maskrcnn-benchmark or grid-feats-vqa"
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Holds the value of a key, and its file and line."""

    value: Value
    location: str


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """Holds the keys of a configuration file and its bases, with the position of each key."""

    path: Path
    values: Mapping[str, Value]
    locations: Mapping[str, str]
    digest: str  # SHA-256 of the bytes of all its files, each before its bases

    def make_error(self, error: WrongKey, remedy: str) -> InputError:
        """Returns the one-line error for an unsupported key."""
        location = self.locations.get(error.key)
        if location is None:  # the Hugging Face port's names may be in either case
            matches = [
                key_location
                for name, key_location in self.locations.items()
                if name.lower() == error.key
            ]
            location = matches[0] if matches else f"{self.path} (which does not set it)"
        return InputError(f"--config {location}: {error}; {remedy}")

    def configuration(self, *, grid: bool = False) -> Configuration:
        """Returns the configuration for vlmill's network; ``grid``: the cells of res5 are the
        regions.

        Raises InputError that names file and key.
        """
        try:
            configuration = read_configuration(self.values, grid=grid)
        except WrongKey as error:
            raise self.make_error(error, GIVE) from None
        except ValueError as error:
            raise InputError(
                f"--config {self.path} is not a detector configuration ({error}); {GIVE}"
            ) from None
        if configuration.config.regions == "grid" and not grid:
            raise InputError(
                f"--config {self.path}: grid features, whose regions are cells; add --grid"
            )
        return configuration

    def record(self) -> dict[str, str]:
        """Returns the record of the configuration for the metadata of an output."""
        return {"config": self.path.name, "config_sha256": self.digest}


def read_config_file(path: Path) -> ConfigFile:
    """Reads a configuration with its bases. Raises InputError that names file and line."""
    files = Files()
    settings = files.read(path, ())
    return ConfigFile(
        path=path,
        values={name: setting.value for name, setting in settings.items()},
        locations={name: setting.location for name, setting in settings.items()},
        digest=hashlib.sha256(b"".join(files.contents)).hexdigest(),
    )


class Files:
    """Reads the files of one configuration and keeps them."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []

    def read(self, path: Path, chain: Sequence[Path]) -> dict[str, Setting]:
        """Returns the settings of a file and its bases; ``chain`` are the files based on it."""
        document = self.document(path, chain)
        if not isinstance(document.value, dict):
            raise InputError(f"--config {path} has no keys; give a detector's configuration")
        bases = document.value.pop(BASE, [])
        settings: dict[str, Setting] = {}
        for base in bases if isinstance(bases, list) else [bases]:
            location = f"{path}:{document.lines[BASE]}"
            settings |= self.read(resolve_base(base, path, location), (*chain, path))
        for name, value in flatten_sections(document.value):
            line = document.lines.get(name)
            settings[name] = Setting(value=value, location=f"{path}:{line}" if line else str(path))
        return settings

    def document(self, path: Path, chain: Sequence[Path]) -> Document:
        """Returns one file as plain data. Raises InputError."""
        if path.resolve() in {chain_path.resolve() for chain_path in chain}:
            circle = " -> ".join(chain_path.name for chain_path in (*chain, path))
            raise InputError(
                f"--config {chain[0]}: {BASE} refers to itself ({circle}); remove one of them"
            )
        if len(self.contents) >= MAX_FILES:
            raise InputError(f"--config {path}: over {MAX_FILES} files through {BASE}; merge some")
        try:
            if path.suffix not in SUFFIXES or not path.is_file():
                origin = f" ({BASE} of {chain[-1]})" if chain else ""
                raise InputError(
                    f"--config {path}: no such .yaml file{origin}; give an existing one"
                )
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise BadYaml(f"over {MAX_BYTES} bytes", 1)
            document = read_document(content.decode("utf-8"), lists_in_texts=True)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--config {path} cannot be read: {error}") from None
        except BadYaml as error:
            raise InputError(
                f"--config {path}:{error.line}: invalid YAML ({error}); fix it"
            ) from None
        self.contents.append(content)
        return document


def resolve_base(base: Value, path: Path, location: str) -> Path:
    """Returns the path of a base; a relative one is relative to the file that names it."""
    if not isinstance(base, str) or "://" in base or "\0" in base:
        raise InputError(f"--config {location}: {BASE} is {base!r}; expected the path of a file")
    return path.parent / base
