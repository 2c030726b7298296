"""Where compiled modules are, and when they are used."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.compiled import build, modules
from app.compiled.use import is_compiled, use_compiled

# Says where a module that may be compiled comes from, after the command has chosen.
SHOW = (
    "import sys; from app.cli import main; code = main(sys.argv[1:]);"
    " import scheduler.often as often, scheduler.queue as queue;"
    " print(queue.__file__, often.__file__); sys.exit(code)"
)

NO_BASES = [[], ["Protocol"]]


def shown(home: Path, compiled: str = "true") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(home), "NARSIL_COMPILED": compiled}
    command = [sys.executable, "-c", SHOW, "--version"]
    return subprocess.run(
        command, env=environment, cwd=modules.ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the place of these sources has a module that was made of them, so to speak."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = modules.place() / "scheduler"
    folder.mkdir(parents=True)
    shutil.copy(modules.ROOT / "scheduler" / "queue.py", folder)
    return tmp_path


def test_every_module_to_compile_is_there() -> None:
    assert [path for path in modules.sources() if not (modules.ROOT / path).is_file()] == []


def test_no_function_that_is_compiled_gives_two_kinds_of_exception_one_name() -> None:
    """Mypyc takes the second for one of the first kind, and raises TypeError."""
    found = []
    for path in modules.sources():
        for function in ast.walk(ast.parse((modules.ROOT / path).read_text("utf-8"))):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found += [f"{path}: {name}" for name in _names_of_two_kinds(function)]
    assert found == []


def test_no_class_of_a_transport_that_is_not_compiled_extends_one_that_is() -> None:
    """Mypyc makes none of them, when a connection comes."""
    compiled = {".".join(path.with_suffix("").parts): path for path in modules.sources()}
    found = []
    for path in (modules.ROOT / "transports").rglob("*.py"):
        if path.relative_to(modules.ROOT) not in compiled.values():
            tree = ast.parse(path.read_text("utf-8"))
            theirs = {
                alias.asname or alias.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module in compiled
                for alias in node.names
            }
            found += [
                f"{path.name}: {node.name}"
                for node in ast.walk(tree)
                if isinstance(node, ast.ClassDef)
                and theirs & {ast.unparse(base).partition("[")[0] for base in node.bases}
            ]
    assert found == []


def _names_of_two_kinds(function: ast.AST) -> set[str]:
    kinds: dict[str, set[str]] = {}
    for handler in ast.walk(function):
        if isinstance(handler, ast.ExceptHandler) and handler.name and handler.type:
            kinds.setdefault(handler.name, set()).add(ast.unparse(handler.type))
    return {name for name, its in kinds.items() if len(its) > 1}


def test_no_functions_that_are_compiled_within_one_name_each_other() -> None:
    """Compiled they are a cycle with what they close over, which only the collector frees."""
    found = []
    for path in modules.sources():
        for function in ast.walk(ast.parse((modules.ROOT / path).read_text("utf-8"))):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found += [f"{path}: {name}" for name in _named_within(function)]
    assert found == []


def _named_within(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    inner = {each.name: each for each in function.body if isinstance(each, kinds)}
    nodes = [node for each in inner.values() for node in ast.walk(each)]
    given = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return ({node.id for node in nodes if isinstance(node, ast.Name)} & inner.keys()) - given


def test_no_class_that_is_compiled_adds_a_call_to_a_base() -> None:
    """Mypyc's own base has no place for it, and calling an instance ends the process."""
    found = []
    for path in modules.sources():
        for node in ast.walk(ast.parse((modules.ROOT / path).read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and [*map(ast.unparse, node.bases)] not in NO_BASES:
                methods = {each.name for each in node.body if hasattr(each, "name")}
                found += [f"{path}: {node.name}"] * ("__call__" in methods)
    assert found == []


def test_what_was_compiled_of_these_sources_is_found_before_them(home: Path) -> None:
    done = shown(home)
    queue, often = done.stdout.splitlines()[-1].split()
    assert done.returncode == 0
    assert Path(queue) == modules.place() / "scheduler" / "queue.py"
    assert Path(often) == modules.ROOT / "scheduler" / "often.py"


def test_it_is_not_used_if_the_environment_says_so(home: Path) -> None:
    queue = shown(home, "false").stdout.splitlines()[-1].split()[0]
    assert Path(queue) == modules.ROOT / "scheduler" / "queue.py"


def test_anything_else_in_the_environment_is_refused_by_name(tmp_path: Path) -> None:
    done = shown(tmp_path, "maybe")
    assert done.returncode == 2
    assert "NARSIL_COMPILED: expected true or false, got 'maybe'" in done.stderr


def test_the_command_says_what_it_is_at_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    assert build.main([]) == 1
    printed = capsys.readouterr()
    assert "some minutes, once" in printed.out
    assert "pip install -e '.[compile]'" in printed.err


def test_the_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        build.main(["--help"])
    assert not stopped.value.code
    assert "for every later start" in " ".join(capsys.readouterr().out.split())


def test_other_sources_have_another_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = modules.place()
    for path in modules.sources():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(modules.ROOT / path, tmp_path / path)
    monkeypatch.setattr(modules, "ROOT", tmp_path)
    assert modules.place() == before
    with (tmp_path / "scheduler" / "queue.py").open("a") as file:
        file.write("# changed\n")
    assert modules.place() != before


def test_nothing_is_replaced_once_it_is_imported() -> None:
    assert not use_compiled()  # this process has imported the scheduler
    assert isinstance(is_compiled(), bool)
