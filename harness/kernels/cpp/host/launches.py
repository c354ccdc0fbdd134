"""Read the launches in the host code of a file, as far as they are numbers.

They are ``k<<<grid, block, shared>>>`` and ``cudaLaunchKernelEx(&config, k, ...)``, which may have clusters.
A name has the value that the text gave it last before the launch: by ``#define``, ``int threads = 256;`` or
``dim3 block(16, 16);``. What is an argument of a function, computed by one, or changed in a loop is unknown.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from harness.kernels import text
from harness.kernels.cpp.host import allocations, calling, frames, values
from harness.kernels.cpp.source import inlined

_BY_CONFIGURATION = re.compile(r"cudaLaunchKernelEx")
_CLUSTER_DIMS = re.compile(
    r"\b__cluster_dims__\s*\(([^()]*)\)\s*(?:(?:__launch_bounds__\s*\([^()]*\)|\w+)\s+)*?"
    r"(?!__launch_bounds__)(\w+)\s*\("
)
_EXPLICIT = re.compile(r"\btemplate\s+void\s+\w+\s*<\s*(\w+)\s*>")
_LIST = r"<((?:[^<>;(){}]|<[^<>;(){}]*>)*)>"  # of a template
_INSTANCES = re.compile(  # of other functions of the host: template Matrix<float>* make<float, int>(...)
    rf"\btemplate\s+(?!<|__global__)[\w:<>,\s*&]*?\b(\w+)\s*{_LIST}\s*\("
)
_PARAMETER = re.compile(r"\b(?:typename|class)\s+(T\w?|\w*(?:[Tt]ype|[Ss]calar|[Ff]loat|[Rr]eal)\w*|\w+_t)\b")
_SUMS = re.compile(  # of PyTorch: the type that sums of scalar_t have
    r"\busing\s+(\w+)\s*=\s*(?:typename\s+)?(?:\w+\s*::\s*)*(?:opmath_type|acc_type|OpMathType|AccumulateType)\s*<"
)
_DECLTYPE = re.compile(r"\bdecltype\s*\(\s*(\w+)\s*\)")
INDEX = re.compile(r"(?i:index|idx|offset)|(?:\A|_)(?i:id)(?=[A-Z_])")  # of a template's parameter: integers
_CLASSES = re.compile(r"\b(?:struct|class|enum)\s+(?:class\s+)?(\w+)\s*[:{]|\busing\s+(\w+)\s*=")
_DECLARED = re.compile(  # not ``BM * BK;``
    r"(?:[\w>]\s+|[a-z_\d>]\s*[*&]\s+|[(,<]\s*(?:const\s+)?[A-Z]\w*\s*[*&]\s*)[*&]*([A-Za-z_]\w*)\s*(?=[,)=;{[])"
)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+\w+\([^()\n]*\)[^\n]*[^\\\n]$", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")
_LOOP = re.compile(r"\bfor\s*(\()\s*(?:[A-Za-z_][\w:]*\s+){0,3}(\w+)\s*=\s*([^;=]{1,100});")
_BRACED = re.compile(r"\)\s*\{")
_OF_HOST = re.compile(r"\btemplate\s*<([^;{}()]*)>[^;{}()]*?\b(\w+)\s*\Z")
_HEAD = 300  # characters of what stands before a function's parameters
_LARGEST_CLUSTER = 16
_MOST = 1024  # threads of a block
_WARP, _FRAMES = 32, 16  # threads, and ways that lead to a launch of which one is chosen
_KEPT = 8


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launch in line `line` of the text.

    `entry` is the kernel, with template arguments if they are known. `block` and `grid` are x, y and z, empty
    where they are not known; `shared` is in bytes, and None where it is not known, or depends on the
    arguments, whose sizes are guessed: `room` is it in terms of these, "" where it is not. `arguments` are
    the kernel's, without casts of numbers. In terms of these `blocks` is the grid, ``(n + 128 - 1) // 128``,
    and `lengths` the bytes that the text allocates for each; empty where other names are left. `bytes` are
    these as numbers, 0 where that is not known. `threads` has the numbers of arguments of which the block is
    made, ``n`` of ``k<<<1, n>>>(x, n)``, else 0, and -1 where that is no number. `numbers` has what the text
    says of each argument, None where that is no number; of one that a loop around the launch counts it is an
    early one, ``1`` of ``for (int k = 0; k < n; k++)``. `derived` is each argument in terms of the others,
    ``half`` of ``int half = n / 2``, "" where it is not.
    `tensors` are those whose accessors are passed, "" for other arguments, `shapes` their extents in terms of
    the arguments and each other's, `allocations.extents`, and `sizes` each argument in terms of the latter.
    """

    entry: str
    line: int
    block: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    shared: int | None = None
    arguments: tuple[str, ...] = field(default=(), compare=False)
    blocks: tuple[str, ...] = field(default=(), compare=False)
    bytes: tuple[int, ...] = field(default=(), compare=False)
    lengths: tuple[str, ...] = field(default=(), compare=False)
    threads: tuple[int, ...] = field(default=(), compare=False)
    room: str = field(default="", compare=False)
    numbers: tuple[int | None, ...] = field(default=(), compare=False)
    derived: tuple[str, ...] = field(default=(), compare=False)
    tensors: tuple[str, ...] = field(default=(), compare=False)
    shapes: tuple[tuple[str, ...], ...] = field(default=(), compare=False)
    sizes: tuple[str, ...] = field(default=(), compare=False)

    def over(self, parameters: Sequence[str], written: Sequence[str]) -> list[str]:
        """Return `blocks` or `lengths` in terms of a kernel's parameters, in place of what they are given."""
        given: dict[str, list[str]] = {}
        for argument, parameter in zip(self.arguments, parameters, strict=False):
            given.setdefault(argument, []).append(parameter)
        names = {argument: values.largest(called) for argument, called in given.items()}
        return [_WORD.sub(lambda word: names.get(word[0], word[0]), part) for part in written]


@functools.lru_cache(maxsize=_KEPT)
def with_headers(source: str, headers: tuple[bytes, ...]) -> str:
    """Return a text, and behind it what its headers give names to, their macros and functions of one line.

    That is what they give outside of functions, and nothing to a name that the text declares itself. A macro
    of a header is none of these, ``row * TILE;``.
    """
    plain, macros = text.blank(source), values.defined(source)
    own = {*macros, *_DECLARED.findall(plain)}
    lines = [source]
    for header in headers:
        written = text.COMMENT.sub(" ", header.decode(errors="replace"))
        given = values.given(values.outside(text.blank(written)))
        found = {n: v for n, v in values.defined(written).items() if n not in macros}
        found |= {name: value for _, name, value in given if name not in own}
        lines += (f"#define {n} {v}" for n, v in found.items() if v and "\n" not in v)
        lines += _MACRO.findall(written)
        lines += (one for one in inlined.functions(written) if one.partition("(")[0].strip() not in own)
    return "\n".join(lines)


def launches(source: str) -> list[Launch]:
    """Return the launches of a text, in its order."""
    return list(_launches(source))


@functools.lru_cache(maxsize=_KEPT)
def _launches(source: str) -> tuple[Launch, ...]:
    plain = values.sized(text.blank(source))
    defined, given = values.defined(source), values.given(plain)
    types = given_types(plain)
    functions, loops = values.bodies(plain), _loops(plain)

    def written(place: int) -> tuple[int, dict[str, str]]:
        """Return where the parameters of the function there begin, and what is written for names."""
        around = [(begin, names) for begin, opened, closed, names in functions if opened < place < closed]
        begin, unknown = around[-1] if around else (0, ())
        known = {
            name: value for at, name, value in given if at < place and (at > begin or name not in unknown)
        }
        return begin, defined | known

    def known_at(place: int) -> values.Values:
        begin, known = written(place)
        called, instance = _instance(plain, begin)
        there = values.Values(written(called)[1]) if instance else None
        numbers = ((n, there.number(value) if there else None, value) for n, value in instance.items())
        return values.Values(known | {n: value if m is None else str(m) for n, m, value in numbers})

    allocated = allocations.Allocated(plain, functions, given, known_at)
    sizes = [(one.place, one.name, known.number(one.bytes) or 0) for one, known in allocated.made]
    found = []
    for place, name, template, passed, launch, *_ in calling.calls(plain):
        known = here = known_at(place)
        grid, block, shared = launch
        instance = _DECLTYPE.sub(functools.partial(_declared, plain[:place]), template)
        named = known.arguments(instance, types | known.types) or not instance
        member = re.search(r"(?<!\bstd)::", known.texts.get(grid.strip(), grid))  # Traits::kBlockM
        if not named or member or not known.dimensions(block):
            frame, known = _of_callers(source, place, known, instance, types, block)
            grid, block, shared = map(frame.members, launch)
        held = {name: size for at, name, size in sizes if at < place}
        arguments = tuple(map(values.uncast, text.split(passed)))
        lengths = allocated.at(place, arguments)
        tensors = allocations.accessed(arguments, here.texts)
        extents = {word for tensor in tensors.values() for word in allocations.extents(tensor)}
        words = extents | {argument for argument in arguments if argument.isidentifier()}
        shapes = {argument: allocated.shape(place, tensor, words) for argument, tensor in tensors.items()}
        around = ((name, first, more) for begin, end, name, first, more in loops if begin < place < end)
        early = {  # but of a size, by which the grid is scaled
            name: number + more
            for name, first, more in around
            if (number := known.number(first)) is not None and not known.mention([name], f"{grid} {block}")
        }
        found.append(
            Launch(
                entry=name + known.arguments(instance, types | known.types),
                line=plain.count("\n", 0, place) + 1,
                block=known.dimensions(block),
                grid=known.dimensions(grid),
                shared=None if known.mention(arguments, shared) else known.number(shared or "0"),
                room=known.length(shared, known.called(arguments)) if shared else "",
                arguments=arguments,
                blocks=known.expressions(grid, known.called(arguments)),
                bytes=tuple(held.get(allocations.name(argument), 0) for argument in arguments),
                lengths=tuple(lengths.get(allocations.name(argument), "") for argument in arguments),
                threads=known.among(arguments, block),
                numbers=tuple(early.get(argument, known.number(argument)) for argument in arguments),
                derived=tuple(_derived(known, argument, arguments) for argument in arguments),
                tensors=tuple(tensors.get(argument, "") for argument in arguments),
                shapes=tuple(shapes.get(argument, ()) for argument in arguments),
                sizes=tuple(here.over(argument, extents) for argument in arguments),
            )
        )
    return tuple(found)


def _derived(known: values.Values, written: str, arguments: Sequence[str]) -> str:
    """Return one of some arguments in terms of the others, "" where it does not follow from them."""
    others = {name for name in arguments if name != written and name.isidentifier()}
    found = known.over(known.texts.get(written, written), others)
    return found if re.search(r"[-+*/]", found) and not others.isdisjoint(_WORD.findall(found)) else ""


def _declared(before: str, decltype: re.Match[str]) -> str:
    """Return the type that a variable was last declared with; the text itself where that is not known."""
    declared = rf"([A-Za-z_][\w:]*(?:\s*<[^;(){{}}]*>)?)\s+{decltype[1]}\s*[;({{=]"
    found = [kind for kind in re.findall(declared, before) if kind not in ("auto", "return")]
    return found[-1] if found else decltype[0]


def _of_callers(
    source: str, place: int, known: values.Values, instance: str, types: dict[str, str], block: str
) -> tuple[frames.Frame, values.Values]:
    """Return the first frame of a place, and what is known there of what is given to its templates.

    It is the first one whose `block` has a warp, if any has. Among that are the classes that names in an
    `instance` stand for, ``using Own = Traits<N, T>;``.
    """
    found = frames.host(source).frames(place)
    frame = next((one for one in found[:_FRAMES] if (one.number(block) or 0) >= _WARP), found[0])
    own = frame.function.parameters if frame.function else ()
    told = {n: v for n, v in frame.known.items() if n not in own and known.texts.get(n) != ""}
    for name in _WORD.findall(instance):
        of, given = frame.host.classes.read(frame.alias(name))
        arguments = [frame.value(one) or types.get(one.strip(), "") for one in given]
        if of is not None and arguments and all(arguments):
            told[name] = f"{of.name}<{', '.join(arguments)}>"
    return frame, values.Values(known.texts | told)


def _instance(plain: str, parameters: int) -> tuple[int, dict[str, str]]:
    """Return where a text first calls a template of the host, and the template arguments there by name.

    It is that whose parameters begin at a place. A call that leaves them to be deduced says nothing.
    """
    template = _OF_HOST.search(plain[max(0, parameters - _HEAD) : parameters])
    call = template and re.search(rf"\b{template[2]}\s*<([^;(){{}}]+)>\s*\(", plain)
    if not template or not call:
        return 0, {}
    names = [words[-1] for part in text.split(template[1]) if (words := re.findall(r"\w+", part))]
    return call.start(), dict(zip(names, text.split(call[1]), strict=False))


@functools.lru_cache(maxsize=_KEPT)
def given_types(plain: str) -> dict[str, str]:
    """Return what template arguments of a blank text mean: its classes, and what templates are given."""
    explicit = next(filter(values.TYPE.fullmatch, _EXPLICIT.findall(plain)), "float")
    numbers = {name: "int" if INDEX.search(name) else explicit for name in _PARAMETER.findall(plain)}
    sums = dict.fromkeys(_SUMS.findall(plain), explicit)
    return {name: name for name in _classes(plain)} | sums | numbers | dict(_of_instances(plain))


def _of_instances(plain: str) -> Iterator[tuple[str, str]]:
    """Yield the types that explicit instances of templates give to their parameters, the first one last."""
    for name, given in reversed(_INSTANCES.findall(plain)):
        if head := re.search(rf"\btemplate\s*{_LIST}[^;{{}}()]*?\b{name}\s*\(", plain):
            names = (part.split()[-1] for part in text.split(head[1]))
            kinds = (part.strip() for part in text.split(given))
            yield from ((n, k) for n, k in zip(names, kinds, strict=False) if values.TYPE.fullmatch(k))


def _classes(plain: str) -> Iterator[str]:
    """Yield the classes and aliases of a blank text that stand in no other brace."""
    whole, depth, done = values.outside(plain), 0, 0
    for at in _CLASSES.finditer(whole):
        depth += whole.count("{", done, at.start()) - whole.count("}", done, at.start())
        done = at.start()
        if not depth:
            yield at[1] or at[2]


def cluster(source: str, entry: str) -> tuple[int, int, int]:
    """Return the blocks of a cluster of the kernel `entry`, 1s if it has none or their number is not known.

    Either the kernel says so, or the last attribute of its launch.
    """
    if "__cluster_dims__" not in source and "clusterDim" not in source:
        return 1, 1, 1
    plain, name = text.blank(source), entry.partition("<")[0].rpartition("::")[2]
    known = values.Values(values.defined(source) | {n: value for _, n, value in values.given(plain)})
    if "<" in entry and (template := text.find(text.entries(source), entry)):
        known = values.Values(known.texts | template.types(entry))
    written = next((text.split(at[1]) for at in _CLUSTER_DIMS.finditer(plain) if at[2] == name), [])
    for place, kernel, *_ in calling.calls(plain):
        if written or kernel.rpartition("::")[2] != name or not _BY_CONFIGURATION.match(plain, place):
            continue
        before = plain[:place]
        written = [calling.last(before, rf"\bclusterDim\s*\.\s*{axis}") or "1" for axis in "xyz"]
        for listed in re.findall(r"\bclusterDim\s*=?\s*\{([^{}]*)\}", before)[-1:]:
            written = text.split(re.sub(r"\.\s*[xyz]\s*=?", "", listed))
    x, y, z = (*(known.number(part) for part in written), 1, 1, 1)[:3]
    return (x, y, z) if x and y and z and x * y * z <= _LARGEST_CLUSTER else (1, 1, 1)


def _loops(plain: str) -> list[tuple[int, int, str, str, int]]:
    """Return (begin, end, name, first value, what is added to be past it) of the loops that count a name."""
    found = list[tuple[int, int, str, str, int]]()
    for at in _LOOP.finditer(plain):
        closed = text.closing(plain, at.start(1))
        braced = _BRACED.match(plain, closed)
        end = text.closing(plain, braced.end() - 1) if braced else plain.find(";", closed)
        found.append((closed, end, at[2], at[3], "++" in plain[at.end() : closed]))
    return found


def passed(launched: Launch | None, entry: text.Entry) -> tuple[str, ...]:
    """Return what a launch passes for each parameter of a kernel, "" where that is not known."""
    return (*(launched.arguments if launched else ()), *[""] * len(entry.parameters))[: len(entry.parameters)]


def by_argument(source: str, entry: str) -> Launch | None:
    """Return the first launch of a kernel whose block is one of its arguments, and not known."""
    found = (launch for launch in _alike(source, entry) if not launch.block and -1 in launch.threads)
    return next(found, None)


def of(source: str, entry: str) -> Launch | None:
    """Return the first launch of a kernel whose block is known: of this very instance, if it is one."""
    found = [launch for launch in _alike(source, entry) if launch.block and math.prod(launch.block) <= _MOST]
    same = [launch for launch in found if _alone(launch.entry) == _alone(entry)]
    return next(iter(same or found), None)


def told(source: str, entry: str) -> Launch | None:
    """Return the first launch of a kernel that says what a tensor's extents are, of whatever block."""
    return next((one for one in _alike(source, entry) if any(one.shapes) or any(one.sizes)), None)


def too_large(source: str, entry: str) -> Launch | None:
    """Return the first launch of a kernel with more threads a block than any GPU takes."""
    return next((launch for launch in _alike(source, entry) if math.prod(launch.block) > _MOST), None)


def one_block(source: str, entry: str) -> bool | None:
    """Return whether a text launches a kernel with one block only, of however many threads.

    None is returned where it does not launch it.
    """
    grids = [launch.grid for launch in _alike(source, entry)]
    return all(set(grid) == {1} for grid in grids) if grids else None


def _alike(source: str, entry: str) -> list[Launch]:
    """Return the launches of a kernel, of all its instances if it is a template."""
    name = _alone(entry).partition("<")[0]
    return [launch for launch in launches(source) if _alone(launch.entry).partition("<")[0] == name]


def _alone(entry: str) -> str:
    """Return a kernel's name without namespaces, with its template arguments."""
    name, begun, arguments = entry.partition("<")
    return "".join(f"{name.rpartition('::')[2]}{begun}{arguments}".split())
