"""Takes a file apart into its definitions and what each one mentions; runs nothing."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, *COMPREHENSIONS)


@dataclass(kw_only=True)
class Unit:
    """What a definition, or the rest of a module, mentions."""

    paths: set[str] = field(default_factory=set)  # dotted, as its module spells them
    attributes: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)  # modules


@dataclass(kw_only=True)
class Module:
    """A file's definitions by name, and what its other names stand for."""

    name: str
    rest: Unit = field(default_factory=Unit)
    definitions: dict[str, Unit] = field(default_factory=dict)
    methods: dict[str, dict[str, Unit]] = field(default_factory=dict)  # by class, by name
    bases: dict[str, list[str]] = field(default_factory=dict)  # by class, as the module spells them
    aliases: dict[str, str] = field(default_factory=dict)  # full dotted paths


class Mentions(ast.NodeVisitor):
    """Fills a unit from syntax; knows which names a function binds itself."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.scopes: list[dict[str, str | None]] = []  # a bound name -> the path of an import

    def visit_Name(self, node: ast.Name) -> None:
        self._mention(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts, value = [node.attr], node.value
        while isinstance(value, ast.Attribute):
            parts.append(value.attr)
            value = value.value
        self.unit.attributes.update(parts)
        if isinstance(value, ast.Name):
            self._mention(".".join([value.id, *reversed(parts)]))
        else:
            self.visit(value)

    def visit_Constant(self, node: ast.Constant) -> None:
        """``"vlmo.model:Vlmo"`` and ``"vlmo.model.Vlmo"`` may be what a table loads later."""
        if isinstance(node.value, str) and "." in node.value.replace(":", "."):
            path = node.value.replace(":", ".")
            if all(part.isidentifier() for part in path.split(".")):
                self.unit.paths.update({path, f"..{path}"})

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.unit.imported |= imported_by(node)

    visit_ImportFrom = visit_Import

    def visit_FunctionDef(self, node: Function) -> None:
        for outside in [*node.decorator_list, *outer_parts(node.args), node.returns]:
            if outside is not None:
                self.visit(outside)
        self._inside({name: None for name in parameters(node.args)}, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for outside in outer_parts(node.args):
            self.visit(outside)
        self._inside({name: None for name in parameters(node.args)}, [node.body])

    def visit_ListComp(self, node: ast.expr) -> None:
        self._inside({}, list(ast.iter_child_nodes(node)))

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def _inside(self, bound: dict[str, str | None], body: Iterable[ast.AST]) -> None:
        nodes = list(body)
        self.scopes.append({**bound, **bindings(nodes)})
        for node in nodes:
            self.visit(node)
        self.scopes.pop()

    def _mention(self, path: str) -> None:
        head, dot, tail = path.partition(".")
        for scope in reversed(self.scopes):
            if head in scope:
                if scope[head] is not None:
                    self.unit.paths.add(f"{scope[head]}{dot}{tail}")
                return
        self.unit.paths.add(path)
        self.unit.attributes.add(head)  # a class's own statements mention its methods so


def aliases_of(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """The names that an import binds, with the full paths that they stand for."""
    if isinstance(node, ast.ImportFrom):
        assert not node.level, "a relative import"
        return {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    whole = {a.asname: a.name for a in node.names if a.asname}
    return whole | {first_of(a): first_of(a) for a in node.names if not a.asname}


def first_of(alias: ast.alias) -> str:
    return alias.name.partition(".")[0]


def imported_by(node: ast.Import | ast.ImportFrom) -> set[str]:
    """The full paths of the modules, or of names in them, that an import loads."""
    from_module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return {f"{from_module}{a.name}" for a in node.names}


def parameters(arguments: ast.arguments) -> list[str]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [a.arg for a in [*every, arguments.vararg, arguments.kwarg] if a is not None]


def outer_parts(arguments: ast.arguments) -> list[ast.expr]:
    """Defaults and annotations, which the scope around a function evaluates."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    annotated = [a for a in [*every, arguments.vararg, arguments.kwarg] if a is not None]
    defaults = [*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]
    return [*defaults, *(a.annotation for a in annotated if a.annotation is not None)]


def scope_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Syntax below ``nodes`` that belongs to their scope, with the heads of inner scopes."""
    for node in nodes:
        yield node
        if not isinstance(node, SCOPES):
            yield from scope_nodes(ast.iter_child_nodes(node))


def bindings(nodes: Iterable[ast.AST]) -> dict[str, str | None]:
    """The names that a scope binds; imports with what they stand for."""
    bound: dict[str, str | None] = {}
    outer: set[str] = set()
    for node in scope_nodes(nodes):
        match node:
            case ast.Import() | ast.ImportFrom():
                bound.update(aliases_of(node))
            case ast.Name(id=str(name), ctx=ast.Store()):
                bound.setdefault(name, None)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                bound.setdefault(name, None)
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                bound.setdefault(name, None)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.setdefault(name, None)
            case ast.Global(names=names):
                outer.update(names)
    return {name: path for name, path in bound.items() if name not in outer}


def read_module(name: str, source: str) -> Module:
    """Takes a file apart into its definitions."""
    module = Module(name=name)
    for statement in top_level(ast.parse(source, name).body):
        match statement:
            case ast.Import() | ast.ImportFrom():
                module.aliases.update(aliases_of(statement))
                module.rest.imported |= imported_by(statement)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not is_special(statement.name):
                mentioned([statement], module.definitions.setdefault(statement.name, Unit()))
            case ast.ClassDef():
                read_class(module, statement)
            case _:
                names = assigned(statement)
                units = [module.definitions.setdefault(n, Unit()) for n in names]
                for unit in units or [module.rest]:
                    mentioned([statement], unit)
    return module


def top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, also those inside its conditions."""
    for statement in body:
        if isinstance(statement, ast.If) and mentions_type_checking(statement.test):
            yield from top_level([*statement.body, *statement.orelse])
        else:
            yield statement


def mentions_type_checking(test: ast.expr) -> bool:
    """Whether a condition tells type checkers from Python: lazy faces import under one."""
    return any(isinstance(n, ast.Name) and n.id == "TYPE_CHECKING" for n in ast.walk(test))


def assigned(statement: ast.stmt) -> list[str]:
    """The names of a module that a statement assigns and does nothing besides."""
    match statement:
        case ast.Assign(targets=targets):
            pass
        case ast.AnnAssign(target=target):
            targets = [target]
        case _:
            return []
    parts = [p for t in targets for p in (t.elts if isinstance(t, ast.Tuple) else [t])]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    return names if len(names) == len(parts) and not any(map(is_special, names)) else []


def is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def read_class(module: Module, node: ast.ClassDef) -> None:
    unit = module.definitions.setdefault(node.name, Unit())
    methods = module.methods.setdefault(node.name, {})
    module.bases[node.name] = [ast.unparse(base).split("[")[0] for base in node.bases]
    mentioned([*node.decorator_list, *node.bases, *node.keywords], unit)
    for statement in node.body:
        if isinstance(statement, Function):
            mentioned([statement], methods.setdefault(statement.name, Unit()))
        else:
            mentioned([statement], unit)


def mentioned(nodes: Iterable[ast.AST], unit: Unit) -> None:
    visitor = Mentions(unit)
    for node in nodes:
        visitor.visit(node)
