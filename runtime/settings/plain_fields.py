"""Converts frozen dataclasses to and from plain YAML values, with errors that name the field and a
remedy.

YAML is plain data here: no includes, no interpolation, no class names. A resolved recipe can be
printed, edited and read back.
"""

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from vlmill.runtime.settings.numbers import MAX_WHOLE
from vlmill.runtime.settings.plain_yaml import BadYaml, read_document
from vlmill.schemas.errors import InputError

T = TypeVar("T")
MAX_CONFIG_BYTES = 1 << 20
# Field names of other projects: difflib would only suggest similar spellings.
SYNONYMS = {
    "learning_rate": "lr",
    "betas": "beta1",
    "epsilon": "eps",
    "max_grad_norm": "clip",
    "grad_clip": "clip",
    "lr_scheduler": "schedule",
    "warmup_ratio": "warmup",
    "num_warmup_steps": "warmup_steps",
    "wd": "weight_decay",
    "max_steps": "steps",
    "num_steps": "steps",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "train_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulation",
    "num_workers": "workers",
    "fp16": "precision",
    "bf16": "precision",
    "amp": "precision",
    "gradient_checkpointing": "checkpoint_activations",
    "fsdp": "shard",
    "ema": "average",
    "hidden_size": "width",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
}


def to_plain(config: Any) -> dict[str, Any]:
    """Returns a dataclass as nested dicts, lists and scalars, in the order of its fields."""
    plain = _plain(dataclasses.asdict(config))
    assert isinstance(plain, dict)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def to_yaml(config: Any) -> str:
    """Returns a dataclass as YAML that :func:`read_yaml` and :func:`from_plain` read back."""
    return yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True)


def read_yaml(path: str | Path, flag: str = "--config") -> dict[str, Any]:
    """Returns the mapping in a YAML file. Raises InputError for other files."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"{flag} {path} has over {MAX_CONFIG_BYTES} bytes; give a recipe")
        values = read_document(path.read_text(encoding="utf-8")).value
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{flag} {path} cannot be read: {error}; give a YAML file") from None
    except BadYaml as error:
        raise InputError(f"{flag} {path}:{error.line}: invalid YAML ({error}); fix it") from None
    if not isinstance(values, dict):
        raise InputError(f"{flag} {path} holds no fields; expected FIELD: VALUE lines of a recipe")
    return values


def from_plain(cls: type[T], values: Mapping[Any, Any], where: str = "") -> T:
    """Builds ``cls`` from plain values; unknown fields and wrong values raise InputError."""
    hints = _field_types(cls, values, where)
    for key in values:
        if key not in hints:
            raise InputError(_unknown(_join(where, str(key)), str(key), list(hints)))
    read = {key: _read(hints[key], value, _join(where, key)) for key, value in values.items()}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and field.name not in read:
            raise InputError(f"{_join(where, field.name)} is missing; it has no default")
    return _build(cls, read, where)


def _field_types(cls: type[Any], values: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Returns the types of the fields; a class with dependent fields has ``field_types``."""
    if not hasattr(cls, "field_types"):
        return get_type_hints(cls)
    try:
        hints: dict[str, Any] = cls.field_types(values)
    except ValueError as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from None
    return hints


def override(config: T, assignments: Sequence[str]) -> T:
    """Applies ``optimizer.lr=3e-5`` style assignments, then checks all fields; values are YAML.

    Members of a list are counted from 0: ``stages.1.steps=10``. Raises InputError for an unknown
    field, with the nearest name, and for a value of the wrong type.
    """
    return replace_fields(config, map(parse_assignment, assignments))


def parse_assignment(assignment: str) -> tuple[str, Any]:
    """Returns the dotted path and the YAML value of ``path=value``."""
    path, _, text = assignment.partition("=")
    try:
        return path, read_document(text).value
    except BadYaml:
        return path, text


def replace_fields(config: T, values: Iterable[tuple[str, Any]], where: str = "") -> T:
    """Returns ``config`` with other plain values at these dotted paths, validated again.

    ``where`` precedes fields in errors. Raises InputError like :func:`override`.
    """
    plain = to_plain(config)
    for path, value in values:
        _assign(plain, path, value)
    return from_plain(type(config), plain, where)


def _assign(plain: dict[str, Any], path: str, value: Any) -> None:
    node: Any = plain
    *parents, leaf = path.split(".")
    for name in parents:
        node = node[_key(node, name, path, plain)]
    node[_key(node, leaf, path, plain)] = value


def _key(node: Any, name: str, path: str, plain: Mapping[str, Any]) -> Any:
    """Returns ``name`` as a key of ``node``, a mapping or a list."""
    if isinstance(node, Mapping) and name in node:
        return name
    if isinstance(node, list):
        if name.isdecimal() and int(name) < len(node):
            return int(name)
        raise InputError(f"{path}: expected a number below {len(node)}, got {name!r}")
    full = {leaf.rsplit(".", 1)[-1]: leaf for leaf in flatten(plain)}
    names = list(node) if isinstance(node, Mapping) else []
    raise InputError(_unknown(path, name, [*names, *full], full))


def flatten(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested mappings and lists as a mapping of dotted paths to scalars or empty ones."""
    return dict(_leaves(plain, prefix))


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    items: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    for key, item in items:
        yield from _leaves(item, _join(where, str(key)))
    if not items:
        yield where, value


def _build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    try:
        return cls(**values)
    except InputError:
        raise
    except ValueError as error:  # from a dataclass that validates itself
        raise InputError(f"{where}: {error}" if where else str(error)) from None


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _read(_member([a for a in args if a is not type(None)], value), value, where)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return from_plain(kind, value, where)
    if origin is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_read(args[0], v, _join(where, str(i))) for i, v in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return value
    if origin is Literal:
        if value is False and "no" in args:  # YAML 1.1 reads no as false
            return "no"
        if value in args:
            return value
        raise InputError(f"{where}: {value!r} is not one of {', '.join(map(str, args))}")
    if kind is float:
        return _read_float(value, where)
    if kind is int and type(value) is int and abs(value) > MAX_WHOLE:
        raise InputError(f"{where}={value}: expected a whole number of at most {MAX_WHOLE}")
    if isinstance(kind, type) and type(value) is kind:
        return value
    raise InputError(f"{where}: expected {_kind_name(kind)}, got {value!r}")


def _member(kinds: Sequence[Any], value: Any) -> Any:
    """Returns the type among several that ``value`` matches; of dataclasses the best match."""
    if len(kinds) > 1 and isinstance(value, Mapping):
        by_names = {kind: {f.name for f in dataclasses.fields(kind)} for kind in kinds}
        return min(kinds, key=lambda kind: len(by_names[kind] ^ value.keys()))
    return next((kind for kind in kinds if _is_of(value, kind)), kinds[0])


def _is_of(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    return type(value) is kind


def _read_float(value: Any, where: str) -> float:
    # YAML 1.1 reads 1e-4 (no dot) as a string, which is never intended.
    try:
        number = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where}: expected a number, got {value!r}")
    return number


def _kind_name(kind: Any) -> str:
    names = {int: "a whole number", str: "a text", bool: "true or false"}
    if get_origin(kind) is tuple:
        return "a list"
    return names.get(kind, f"fields of {getattr(kind, '__name__', kind)}")


def _unknown(
    where: str, name: str, names: Sequence[str], full: Mapping[str, str] | None = None
) -> str:
    near = [field for synonym, field in SYNONYMS.items() if synonym == name and field in names]
    near = near or difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"did you mean {(full or {}).get(near[0], near[0])}?" if near else ""
    return f"{where}: unknown field; {hint or 'there are ' + ', '.join(names)}"


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
