"""Parses conditions on rows, ``score > 0.5 and language == "en"``, and never runs them as code."""

import ast
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import Table

MAX_CHARACTERS, MAX_NODES = 10_000, 500
COMPARE: dict[type[ast.cmpop], Callable[..., Any]] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
HINT = (
    'expected a condition such as: score > 0.5 and split in ["train", "val"] and text is not None'
)
Mask: TypeAlias = Any
"""A pyarrow array of booleans, null where a value was."""


class Condition:
    """Holds a parsed condition. Raises InputError for an invalid one.

    A comparison with null is false, and so is its negation; use ``x is None``.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            if len(text) > MAX_CHARACTERS:
                raise ValueError(f"it has {len(text)} characters")
            self._tree = ast.parse(text.strip(), mode="eval").body
            nodes = list(ast.walk(self._tree))
            if len(nodes) > MAX_NODES:
                raise ValueError(f"it has {len(nodes)} parts, at most {MAX_NODES}")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            message = error.msg if isinstance(error, SyntaxError) else error
            raise InputError(f"--where {text[:200]}: {message}; {HINT}") from None
        self.columns = sorted({node.id for node in nodes if isinstance(node, ast.Name)})
        if not self.columns:
            raise InputError(f"--where {text}: it names no column; {HINT}")

    def check(self, table: Table) -> None:
        """Raises InputError for missing columns, and for values of another type than a column."""
        unknown = [name for name in self.columns if name not in table.fields]
        if unknown:
            raise InputError(
                f"--where {self.text}: {table.name} has no column {', '.join(unknown)}; it has "
                f"{', '.join(table.schema.names)}"
            )
        self.mask(table.schema.empty_table())

    def mask(self, rows: pa.Table) -> Mask:
        """Returns a mask of the rows that satisfy the condition."""
        try:
            return pc.fill_null(self._mask(self._tree, rows), False)
        except (pa.ArrowException, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"--where {self.text}: {reason}; {HINT}") from None

    def _mask(self, node: ast.expr, rows: pa.Table) -> Mask:
        match node:
            case ast.BoolOp(op=op, values=values):
                join = pc.and_kleene if isinstance(op, ast.And) else pc.or_kleene
                masks = [self._mask(value, rows) for value in values]
                mask = masks[0]
                for other in masks[1:]:
                    mask = join(mask, other)
                return mask
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return pc.invert(self._mask(operand, rows))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compare(left, op, right, rows)
        raise InputError(
            f"--where {self.text}: {ast.unparse(node)[:100]} is not a comparison; {HINT}"
        )

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr, rows: pa.Table) -> Mask:
        value = self._value(left, rows)
        if isinstance(op, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise InputError(f"--where {self.text}: `is` is only for None; {HINT}")
            return pc.is_null(value) if isinstance(op, ast.Is) else pc.is_valid(value)
        if isinstance(op, ast.In | ast.NotIn):
            values = pa.array(self._list(right)).cast(value.type)
            mask = pc.if_else(pc.is_valid(value), pc.is_in(value, value_set=values), None)
            return mask if isinstance(op, ast.In) else pc.invert(mask)
        if type(op) not in COMPARE:
            raise InputError(f"--where {self.text}: {HINT}")
        return COMPARE[type(op)](value, self._value(right, rows))

    def _value(self, node: ast.expr, rows: pa.Table) -> Any:
        if isinstance(node, ast.Name):
            return rows.column(node.id)
        return self._constant(node)

    def _constant(self, node: ast.expr) -> str | int | float | bool:
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError):
            value = None
        if not isinstance(value, str | int | float | bool):
            raise InputError(
                f"--where {self.text}: {ast.unparse(node)[:100]} is not a value; {HINT}"
            )
        return value

    def _list(self, node: ast.expr) -> list[Any]:
        if not isinstance(node, ast.List | ast.Tuple) or not node.elts:
            raise InputError(f"--where {self.text}: `in` needs a list of values; {HINT}")
        return [self._constant(element) for element in node.elts]
