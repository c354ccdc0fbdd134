"""What each module may know: the layers of the design, read from the imports themselves."""

from __future__ import annotations

import ast
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import harness

PACKAGE = Path(harness.__file__).parent

# A module imports only from its own layer and those below; a folder is one module here. Of one layer,
# no two import each other.
LAYERS = [
    ["errors", "closing", "dtypes", "nvbench", "terminal", "workers"],
    [
        "arch",
        "axes",
        "bounds",
        "catalog",
        "counters",
        "expect",
        "expr",
        "fma",
        "frontmatter",
        "heuristic",
        "own_table",
        "parts",
        "problem",
        "gemm",
        "halving",
        "headers",
        "predict",
        "problem_checks",
        "problems",
        "spec",
        "stats",
        "stopping",
        "verify",
    ],
    [
        "build",
        "cache",
        "control",
        "diagnosis",
        "driver",
        "elf",
        "emulator",
        "loops",
        "nvdisasm",
        "occupancy",
        "opcodes",
        "sass",
        "telemetry",
        "tools",
    ],
    ["banks"],
    ["code"],
    [
        "assertion",
        "binary",
        "builds",
        "clock",
        "compiled",
        "contract",
        "cublas",
        "cublaslt",
        "diff",
        "fingerprint",
        "forks",
        "launch",
        "listing",
        "hotspots",
        "operands",
        "sanitizer",
        "workspaces",
    ],
    ["ahead", "arrays", "ncu_reports"],
    ["gemm_launch"],
    ["ncu", "plan", "pruning", "timing", "dispatch"],
    ["torch_ops"],
    ["sampling"],
    ["ceilings"],
    ["measure"],
    ["rounds"],
    ["bench", "emulation"],
    ["behaviour", "repetition"],
    ["comparison", "isolate", "record", "report", "tables"],
    ["journal", "trial"],
    ["opponent"],
    ["tune"],
    ["t4", "markup"],
    ["charts", "choices", "claims", "explanation"],
    ["cards"],
    ["page"],
    ["calibration", "selftest"],
    ["cli", "pytest_plugin"],
    ["__init__", "__main__"],  # the library's names and the command: whatever they need
]
LAYER = {name: layer for layer, names in enumerate(LAYERS) for name in names}

# Packages that only some modules may import: CUDA is named in one place a library.
OWNERS = {
    "cuda.bindings.driver": {"driver"},
    "cuda.bindings.nvrtc": {"build"},
    "cuda.bindings.nvjitlink": {"build"},
    "cuda.bindings": {"driver", "build"},
    "cuda.bench": {"calibration"},
    "cuda.pathfinder": {"tools"},
    "cuda": {"driver", "build", "calibration", "tools"},
    "matplotlib": {"charts", "page"},
    "ncu_report": {"ncu_reports"},
    "nvmath": {"cublas", "cublaslt"},
    "pynvml": {"telemetry"},
    "torch": {"torch_ops"},
    "click": {"cli"},
    "tqdm": {"cli"},
    "pytest": {"pytest_plugin"},
}
# Imports by a name made at run time, which no parser sees: what each is for.
DYNAMIC = {
    "__init__": "the library's names, when they are first used",
    "build": "the compilers' bindings",
    "cli": "one module a verb",
    "problems": "a user's own Problem class, from its file",
}
MAX_LINES = 350
LONGER: dict[str, str] = {}  # path inside the package -> why it is better long than in two


@dataclass(frozen=True)
class Import:
    """`name` is what is imported, dotted; a member of a module counts as part of that module's name."""

    file: str
    line: int
    name: str
    typing_only: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.name}"


def files(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def unit(file: Path, package: Path) -> str:
    """The module or folder directly under `package` that `file` is, or is part of."""
    return file.relative_to(package).parts[0].removesuffix(".py")


def imports(file: Path, package: Path) -> Iterator[Import]:
    """Every import statement, those inside functions and under TYPE_CHECKING included."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    checking = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    here = [package.name, *file.relative_to(package).with_suffix("").parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = [".".join(here[: -node.level])] if node.level else []
            source = ".".join([*start, *([node.module] if node.module else [])])
            names = [f"{source}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield Import(str(file.relative_to(package)), node.lineno, name, node in checking)


def inner(package: Path) -> Iterator[tuple[str, str, Import]]:
    """(importing unit, imported unit, the import) for every import of the package's own modules."""
    for file in files(package):
        for found in imports(file, package):
            head, _, rest = found.name.partition(".")
            if head == package.name:
                to = rest.split(".")[0]
                known = (package / to).is_dir() or (package / f"{to}.py").is_file()
                yield unit(file, package), to if to and known else "__init__", found


def upward(package: Path) -> list[str]:
    return [
        f"{found} (layer {LAYER[source]} from {LAYER[target]})"
        for source, target, found in inner(package)
        if LAYER[source] < LAYER[target]
    ]


def cycle(package: Path) -> list[str]:
    """Units that import each other in a circle; imports for type checkers alone close none."""
    graph: dict[str, set[str]] = {}
    for source, target, found in inner(package):
        if source != target and not found.typing_only:
            graph.setdefault(source, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        return list(e.args[1])
    return []


def import_time_cycle(package: Path) -> list[str]:
    """The same between single files, for imports that run when a module is imported."""
    graph: dict[str, set[str]] = {}
    for file in files(package):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        lazy = {
            node
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(function)
        }
        lines = {node.lineno for node in lazy if isinstance(node, ast.Import | ast.ImportFrom)}
        for found in imports(file, package):
            if found.typing_only or found.line in lines:
                continue
            for name in (found.name, found.name.rpartition(".")[0]):
                path = package.parent.joinpath(*name.split(".")).with_suffix(".py")
                if path.is_file():
                    graph.setdefault(str(file), set()).add(str(path))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        return [Path(p).stem for p in e.args[1]]
    return []


def strangers(package: Path) -> list[str]:
    """Imports of packages that belong to another module."""
    wrong = []
    for file in files(package):
        for found in imports(file, package):
            owned = [name for name in OWNERS if f"{found.name}.".startswith(f"{name}.")]
            if owned and unit(file, package) not in OWNERS[max(owned, key=len)]:
                wrong.append(str(found))
    return wrong


def calls(package: Path) -> Iterator[tuple[str, str, str]]:
    """(unit, place, what is called) for every call; what is raised by its name alone counts as called."""
    for file in files(package):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name):
                called = node.exc.id
            else:
                continue
            yield unit(file, package), f"{file.relative_to(package)}:{node.lineno}", called


VOICES = re.compile(
    r"print|pprint|input|breakpoint|exit|quit|sys\.exit|os\._exit|SystemExit"
    r"|(pprint|click|sys\.stdout|sys\.stderr|sys\.__stdout__|sys\.__stderr__)\..+"
)


def voices(package: Path) -> list[str]:
    """Where a module other than the command line prints or ends the process."""
    return [
        f"{place} {called}"
        for source, place, called in calls(package)
        if source != "cli" and VOICES.fullmatch(called)
    ]


def hidden_imports(package: Path) -> list[str]:
    return [
        f"{place} {called}"
        for source, place, called in calls(package)
        if source not in DYNAMIC
        and called in ("__import__", "import_module", "importlib.import_module", "exec", "eval", "compile")
    ]


# The rules, on the package


def test_every_module_has_a_layer() -> None:
    assert {unit(file, PACKAGE) for file in files(PACKAGE)} == set(LAYER), "add it to LAYERS, or take it out"


def test_nothing_imports_from_a_higher_layer() -> None:
    assert upward(PACKAGE) == []


def test_no_modules_import_each_other() -> None:
    assert cycle(PACKAGE) == []
    assert import_time_cycle(PACKAGE) == []


def test_each_library_is_imported_in_one_place() -> None:
    assert strangers(PACKAGE) == []


def test_imports_can_be_read() -> None:
    assert hidden_imports(PACKAGE) == []


def test_only_the_command_line_prints_and_exits() -> None:
    assert voices(PACKAGE) == []


@pytest.mark.parametrize("file", files(PACKAGE), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_are_short(file: Path) -> None:
    name = str(file.relative_to(PACKAGE))
    lines = len(file.read_text(encoding="utf-8").splitlines())
    if name in LONGER:
        assert lines > MAX_LINES, f"{name} is short again: take it out of LONGER"
    else:
        assert lines <= MAX_LINES, f"{name} has {lines} lines: make it two, or say in LONGER why not"


def test_names_of_the_library_shadow_no_module() -> None:
    """`harness.build` would be a function or a module, as whoever imported what first decides."""
    assert set(harness.__all__) & {unit(file, PACKAGE) for file in files(PACKAGE)} == set()


# The rules, on a package that breaks them


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A package of the same shape without any imports."""
    package = tmp_path / "harness"
    for folder in ("", "cli", "driver"):
        (package / folder).mkdir()
        (package / folder / "__init__.py").write_text("")
    for name in set(LAYER) - {"__init__", "cli", "driver"}:
        (package / f"{name}.py").write_text("")
    return package


def test_a_clean_package_passes(planted: Path) -> None:
    (planted / "bench.py").write_text("from harness import launch\nfrom harness.build import build\n")
    (planted / "build.py").write_text("from cuda.bindings import nvrtc\nfrom .cache import Cache\n")
    (planted / "cli" / "x.py").write_text("import sys\nprint(1)\nsys.exit(1)\nraise SystemExit(1)\n")
    (planted / "report.py").write_text("def print_table():\n    raise ValueError(exit)\nprint_table()\n")
    for rule in (upward, cycle, import_time_cycle, strangers, voices, hidden_imports):
        assert rule(planted) == [], rule.__name__


@pytest.mark.parametrize(
    "code",
    [
        "import harness.bench",
        "import harness.bench as b",
        "from harness import bench",
        "from harness import errors, bench",
        "from harness.bench import Bench",
        "from . import bench",
        "from .bench import Bench",
        "def f():\n    from harness import bench",
        "class A:\n    def f(self):\n        if 1:\n            import harness.bench",
        "try:\n    import harness.bench\nexcept ImportError: pass",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from harness.bench import Bench",
        "from harness.cli.options import x",
        "from harness import Bench",  # a name of the library
        "import harness",
    ],
)
@pytest.mark.parametrize("module", ["spec.py", "driver/memory.py"])
def test_an_upward_import_is_found(planted: Path, module: str, code: str) -> None:
    if module.startswith("driver/"):
        code = code.replace("from .", "from ..")
    (planted / module).write_text(code)
    (found,) = upward(planted)
    assert module in found


def test_a_cycle_is_found(planted: Path) -> None:
    (planted / "spec.py").write_text("from harness import arch")
    (planted / "arch.py").write_text("def f():\n    from harness.expr import Expr")
    assert cycle(planted) == []
    (planted / "expr.py").write_text("from harness import spec")
    assert set(cycle(planted)) == {"spec", "arch", "expr"}
    assert import_time_cycle(planted) == []
    (planted / "arch.py").write_text("from harness.expr import Expr")
    assert set(import_time_cycle(planted)) == {"spec", "arch", "expr"}
    (planted / "arch.py").write_text("if TYPE_CHECKING:\n    from harness.expr import Expr")
    assert cycle(planted) == import_time_cycle(planted) == []


def test_a_cycle_inside_a_folder_is_found(planted: Path) -> None:
    (planted / "driver" / "a.py").write_text("from harness.driver.b import f")
    (planted / "driver" / "b.py").write_text("from harness.driver import a")
    assert set(import_time_cycle(planted)) == {"a", "b"}


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("bench", "from cuda.bindings import driver"),
        ("build", "from cuda.bindings import driver"),
        ("driver/x", "from cuda.bindings import nvrtc"),
        ("sass", "import cuda.bindings.nvjitlink as n"),
        ("launch", "def f():\n    import cuda.bindings.driver"),
        ("tools", "from cuda import bindings"),
        ("report", "import cuda"),
        ("bench", "from nvmath.bindings import cublas"),
        ("driver/x", "import pynvml"),
        ("report", "import click"),
    ],
)
def test_a_strange_import_is_found(planted: Path, module: str, code: str) -> None:
    (planted / f"{module}.py").write_text(code)
    (found,) = strangers(planted)
    assert f"{module}.py" in found


@pytest.mark.parametrize(
    "code",
    [
        "print(1)",
        "def f():\n    print()",
        "sys.exit(2)",
        "raise SystemExit",
        "raise SystemExit(2)",
        "sys.stdout.write('x')",
        "click.echo('x')",
        "exit()",
    ],
)
@pytest.mark.parametrize("module", ["report", "driver/memory"])
def test_a_voice_is_found(planted: Path, module: str, code: str) -> None:
    (planted / f"{module}.py").write_text(code)
    assert len(voices(planted)) == 1


def test_a_hidden_import_is_found(planted: Path) -> None:
    (planted / "spec.py").write_text("m = importlib.import_module('harness.' + name)")
    (planted / "stats.py").write_text("def f(n):\n    return __import__(n)")
    assert len(hidden_imports(planted)) == 2


# What an import costs


HEAVY = ("cuda", "numpy", "nvmath", "pynvml", "tqdm", "tabulate", "click")


def loaded(code: str) -> set[str]:
    """Which heavy packages a fresh interpreter holds after `code`."""
    ask = f"{code}\nimport sys\nprint('\\n' + ' '.join(n for n in {HEAVY} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


HELP = (
    "import runpy, sys\nsys.argv = ['harness', {}]\ntry: runpy.run_module('harness', run_name='__main__')\n"
)
HELP += "except SystemExit: pass"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import harness", set()),
        ("import harness; dir(harness); harness.Kernel, harness.kernel('tiled')", set()),
        ("import harness.driver", set()),
        ("import harness.build, harness.sass", set()),
        (HELP.format("'--help'"), {"click"}),
        (HELP.format("'bench', '--help'"), {"click"}),
        ("import harness.verify", {"numpy"}),  # the control
    ],
    ids=["harness", "kernel", "driver", "build", "help", "bench-help", "control"],
)
def test_imports_are_light(code: str, expected: set[str]) -> None:
    assert loaded(code) == expected


def test_help_is_quick() -> None:
    def once() -> float:
        """Seconds of a core: on a busy machine those of a clock say little."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "harness", "--help"], capture_output=True, text=True, check=True
        )
        assert "Usage:" in done.stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(7)) < 0.3
