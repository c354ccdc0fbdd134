"""Write in CUDA C++ what addresses and conditions a PTX text computes: what guesses read of a file of PTX.

It is a text to be read, not compiled: values that lead to no address and no condition are left out, and so is
what other functions do. Names are those of registers and parameters, ``r3`` for ``%r3`` and ``param_0`` for
``add_param_0``. Compilers' output is meant: an instruction a statement, registers that are set once.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?([^{};]*)\{")
_VECTOR = re.compile(r"\{\s*((?:[%\w$.-]+\s*,\s*)*[%\w$.-]+)\s*\}")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(\.ptr\b(?:\s*\.\w+)*(?:\s+\d+)?\s+)?([\w$]+)\s*(\[\s*\d+\s*\])?"
)
_BOUNDS = re.compile(r"\.(?:maxntid|reqntid)\s+(\d+)\s*(?:,\s*(\d+)\s*)?(?:,\s*(\d+))?")
_ADDRESS = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+)\s*)?\]")
_STATEMENT = re.compile(r"(?:@(!?)\s*([%\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)\Z", re.DOTALL)
_SPECIAL = {
    f"%{register}.{axis}": f"{name}.{axis}"
    for register, name in dict(tid="threadIdx", ctaid="blockIdx", ntid="blockDim", nctaid="gridDim").items()
    for axis in "xyz"
} | {"%laneid": "(threadIdx.x & 31)", "%warpid": "(threadIdx.x / 32)", "WARP_SZ": "32"}
_CPP = {  # types of elements by how registers with them are used
    "f64": "double", "f32": "float", "f16": "__half", "f16x2": "__half", "bf16": "__nv_bfloat16",
    "bf16x2": "__nv_bfloat16", "b8": "unsigned char", "u8": "unsigned char", "s8": "signed char",
    "b16": "__half", "u16": "unsigned short", "s16": "short", "b32": "float", "u32": "unsigned int",
    "s32": "int", "b64": "long long", "u64": "unsigned long long", "s64": "long long",
}  # fmt: skip
_COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="} | {
    "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip
_BETWEEN = {"and": "&", "xor": "^", "div": "/", "rem": "%", "shl": "<<", "shr": ">>"}
_LONGEST = 400  # characters of a value; a longer one is a variable


@dataclass(frozen=True)
class Sum:
    """A value as a sum: factors by what they multiply, a number, and the pointer that it is added to."""

    terms: Mapping[str, int] = field(default_factory=dict)
    number: int = 0
    base: str = ""

    def plus(self, other: Sum, sign: int = 1) -> Sum:
        """Return this value and `other`, `sign` times."""
        terms = dict(self.terms)
        for name, factor in other.terms.items():
            terms[name] = terms.get(name, 0) + sign * factor
        kept = {name: factor for name, factor in terms.items() if factor}
        return Sum(kept, self.number + sign * other.number, self.base or other.base)

    def times(self, other: Sum) -> Sum:
        """Return the product with `other`: each term's where one is a number."""
        if self.terms and other.terms:
            return Sum({f"{self.factor()} * {other.factor()}": 1})
        few, many = (self, other) if not self.terms else (other, self)
        return Sum({n: f * few.number for n, f in many.terms.items() if few.number}, many.number * few.number)

    def over(self, bytes: int) -> Sum:
        """Return the elements of so many `bytes` each; what is no whole number of them stays a division."""
        whole = {n: f // bytes for n, f in self.terms.items() if f % bytes == 0}
        rest = Sum({n: f for n, f in self.terms.items() if f % bytes})
        found = Sum(whole, self.number // bytes)
        return found.plus(Sum({f"({rest}) / {bytes}": 1})) if rest.terms else found

    def factor(self) -> str:
        """Return the value as it stands beside a star."""
        written = str(self)
        return written if re.fullmatch(r"[\w.]+|\([^()]*\)", written) else f"({written})"

    def __str__(self) -> str:
        parts = [n if f == 1 else f"{_tight(n)} * {f}" for n, f in self.terms.items()]
        if self.number or not parts:
            parts.append(str(self.number))
        return " + ".join(parts).replace("+ -", "- ")


@functools.lru_cache(maxsize=8)
def cpp(ptx: str) -> str:
    """Return the kernels of a PTX text in C++; ones that it declares only, or cannot be read, are left out."""
    plain = _COMMENT.sub(" ", ptx)
    shared = re.findall(r"\.extern\s+\.shared[^;]*?([\w$]+)\s*\[\s*\]", plain)
    # How much of it the host asks for is not in PTX: it may be all that there is.
    parts = [f"extern __shared__ char {_name(n)}[]; int MaxDynamicSharedMemorySize;" for n in shared[:1]]
    for found in _ENTRY.finditer(plain):
        end = plain.find(".entry", found.end())
        body = plain[found.end() : end if end > 0 else len(plain)]
        parts.append(_Kernel(found[1], found[2] or "", found[3], body, shared).text())
    return "\n".join(parts)


class _Kernel:
    """One entry: its registers' values while its statements are read, one after the other."""

    def __init__(self, name: str, parameters: str, directives: str, body: str, shared: list[str]) -> None:
        self._name = name
        self._dynamic = [n for n in shared if re.search(rf"(?<![\w$]){re.escape(n)}(?![\w$])", body)]
        self._parameters = [
            (_name(p[3].removeprefix(f"{name}_")), p[1], bool(p[2]), p[3], bool(p[4]))
            for p in _PARAMETER.finditer(parameters)
        ]
        self._bounds = _BOUNDS.search(directives)
        self._statements = list(_statements(body))
        self._labels = {  # from which nothing but the end comes
            s for s, n in zip(self._statements, self._statements[1:], strict=False) if n in ("ret", "exit")
        }
        words = [re.findall(r"%[\w$]+(?:\.[xyz])?", s) for s in self._statements]
        self._uses = Counter(word for found in words for word in found)
        self._set = Counter(
            name for s in self._statements for name in _set_by(s) if not s.startswith(("st.", "red."))
        )
        self._types = dict[str, set[str]]()
        for s in self._statements:
            kind = re.search(r"\.(f64|f32|f16x2|f16|bf16x2|bf16)\b", s.split()[0] + " " + s[:60].split(" ")[0])
            for word in re.findall(r"%[\w$]+", s) if kind else ():
                self._types.setdefault(word, set()).add(kind[1])
        self._bytes, self._kinds = dict[str, int](), dict[str, set[str]]()
        self._written = set[str]()
        self._values, self._lines = dict[str, Sum | str](), list[str]()

    def text(self) -> str:
        """Return the function. It is read twice: the second time with the sizes of elements."""
        for _ in range(2):
            self._values, self._lines = {}, []
            self._lines += [f"{_name(n)};" for n in self._dynamic]
            for statement in self._statements:
                self._read(statement)
        bounds = self._bounds and [int(n) for n in self._bounds.groups() if n]
        head = f" __launch_bounds__({functools.reduce(lambda a, b: a * b, bounds)})" if bounds else ""
        listed = ", ".join(self._declared(*p) for p in self._parameters)
        lines = "\n".join(f"    {line}" for line in self._lines)
        whole = f"__global__ void{head} {self._name}({listed})\n{{\n{lines}\n}}\n"
        for name, *_ in self._parameters:
            if name not in self._bytes and _strides(name, lines):
                whole = re.sub(rf"\b{name}\b", name.replace("param", "stride"), whole)
        return whole

    def _declared(self, name: str, kind: str, marked: bool, _: str, several: bool) -> str:
        """Return the declaration of a parameter: a pointer if something is loaded or stored there."""
        if name in self._bytes or marked:
            const = "" if name in self._written else "const "
            return f"{const}{self._element(name)}* {name}"
        if several:
            return f"void*** {name}"  # a struct, of which nothing is known
        numbers = {"u64": "long long", "b64": "long long", "b32": "int", "u32": "int", "b16": "short"}
        if kind == "b32" and any("f32" in self._types.get(r, ()) for r in self._held(name)):
            return f"float {name}"
        return f"{numbers.get(kind) or _CPP.get(kind, 'int')} {name}"

    def _held(self, name: str) -> Iterator[str]:
        return (r for r, value in self._values.items() if isinstance(value, Sum) and str(value) == name)

    def _element(self, name: str) -> str:
        """Return the type of what a pointer leads to: as its values are used, else as they are loaded."""
        kinds = self._kinds.get(name, {"b32"})
        order = [k for k in _CPP if k in kinds and not k.startswith("b")] + [k for k in _CPP if k in kinds]
        fitting = [k for k in order if int(re.findall(r"8|16|32|64", k)[0]) == 8 * self._bytes.get(name, 4)]
        return _CPP[(fitting or order or ["b8"])[0]]

    # -- statements

    def _read(self, statement: str) -> None:
        if statement.endswith(":"):
            return
        if (found := _STATEMENT.match(statement)) is None:
            return
        negated, guard, opcode, rest = found.groups()
        condition = self._condition(guard, bool(negated)) if guard else ""
        base, operands = opcode.split(".")[0], _operands(rest)
        if base in ("ld", "ldu", "st", "atom", "red", "cp"):
            self._access(opcode, operands, condition)
        elif base in ("ret", "exit"):
            self._line("return;", condition)
        elif base == "bra":
            end = f"{operands[0]}:" in self._labels
            self._line("return;" if end else f"goto {_name(operands[0])};", condition)
        elif base in ("bar", "barrier"):
            self._line("__syncthreads();", condition)
        elif operands:
            self._assign(operands[0], self._value(opcode, operands[1:]), condition)

    def _line(self, text: str, condition: str = "") -> None:
        self._lines.append(f"if ({condition}) {text}" if condition else text)

    def _assign(self, register: str, value: Sum | str | None, condition: str) -> None:
        """Give a register its value: a variable where it is used, or set, several times."""
        for one in re.findall(r"[%\w$]+", register)[1:] if register.startswith("(") else ():
            self._values.pop(one, None)
        name = _name(register)
        if self._set[register] > 1:
            before = self._values.get(register)
            if isinstance(value, Sum):
                at = value.over(self._bytes.get(value.base, 1)) if value.base else value
                self._line(f"{name} = {at};", condition)
            base = (value.base if isinstance(value, Sum) else "") or (
                before.base if isinstance(before, Sum) else ""
            )
            self._values[register] = Sum({name: self._bytes.get(base, 1) if base else 1}, 0, base)
        elif isinstance(value, str):  # a condition
            self._values[register] = value
        elif value is None:
            self._values[register] = Sum({name: 1})
        elif value.base or self._uses[register] < 3 and len(str(value)) < _LONGEST or _simple(value):
            self._values[register] = value
        else:
            factor = math.gcd(value.number, *value.terms.values())  # of bytes, an element's
            self._line(f"int {name} = {value.over(factor)};", condition)
            self._values[register] = Sum({name: factor})

    def _access(self, opcode: str, operands: Sequence[str], condition: str) -> None:
        """Write an access to global memory; what is loaded from elsewhere is a value of which nothing is known."""
        parts = opcode.split(".")
        places = [o for o in operands if o.startswith("[")]
        if "param" in parts and parts[0] == "ld":
            self._assign(operands[0], self._argument(places[0]), condition)
            return
        source = places[-1] if parts[0] == "cp" and len(places) > 1 else places[0] if places else ""
        at = self._place(source)
        loaded = re.findall(r"%[\w$]+", operands[0]) if parts[0] in ("ld", "ldu", "atom") else []
        local = parts[0] != "cp" and {"shared", "local", "const"} & {p.partition("::")[0] for p in parts}
        if local or at is None or not at.base:
            for register in loaded:
                self._assign(register, None, condition)
            return
        kind = next((p for p in parts if p in _CPP or p == "b128"), "b8")
        stored = operands[1 - (parts[0] == "red") :] if parts[0] in ("st", "red") else []
        values = loaded or [r for o in stored for r in re.findall(r"%[\w$]+", o) if o is not source]
        if parts[0] == "st":
            values = [r for o in operands[1:] for r in re.findall(r"[%\w$.-]+", o)]
        self._touch(at.base, kind, values, parts[0] not in ("ld", "ldu", "cp"))
        size = self._bytes.get(at.base, 1)
        width = 16 if kind == "b128" else int(re.findall(r"8|16|32|64", kind)[0]) // 8
        count = max(1, len(values) * width // size) if parts[0] in ("ld", "ldu", "st") else 1
        if parts[0] == "cp" and len(operands) > 2 and operands[2].isdecimal():
            count = max(1, int(operands[2]) // size)
        for n in range(count):
            name = f"{at.base}[{at.over(size).plus(Sum(number=n))}]"
            if n < len(loaded):
                self._values[loaded[n]] = Sum({_name(loaded[n]): 1})
                self._line(f"{_name(loaded[n])} = {name};", condition)
            elif parts[0] in ("ld", "cp"):
                self._line(f"{name};", condition)
            elif parts[0] == "st":
                self._line(f"{name} = {self._operand(values[n * len(values) // count])};", condition)
            else:
                self._line(f"atomicAdd(&{name}, 1);", condition)
        if parts[0] == "atom":
            for register in loaded:
                self._values[register] = Sum({_name(register): 1})

    def _touch(self, pointer: str, kind: str, values: Sequence[str], written: bool) -> None:
        """Note how a pointer is used: by the narrowest access its elements' size, by its values their type."""
        used = {t for register in values for t in self._types.get(register, ())}
        width = 4 if kind == "b128" else int(re.findall(r"8|16|32|64", kind)[0]) // 8
        if used & {"f16", "f16x2", "bf16", "bf16x2"} and width == 4 and "f32" not in used:
            width = 2
        self._bytes[pointer] = min(width, self._bytes.get(pointer, width))
        self._kinds.setdefault(pointer, set()).update(used or {"b32" if kind == "b128" else kind})
        if written:
            self._written.add(pointer)

    # -- values

    def _argument(self, place: str) -> Sum | None:
        found = _ADDRESS.match(place)
        for name, kind, marked, whole, several in self._parameters:
            if found and whole == found[1] and not several:
                pointer = marked or kind in ("u64", "b64")
                return Sum(base=name) if pointer else Sum({name: 1})
        return None

    def _place(self, place: str) -> Sum | None:
        found = _ADDRESS.match(place)
        value = self._values.get(found[1]) if found else None
        if found is None or not isinstance(value, Sum):
            return None
        return value.plus(Sum(number=_number(found[2] or "0") or 0))

    def _operand(self, operand: str) -> Sum:
        """Return the value of an operand; of a pointer as a number it is its name."""
        if (number := _number(operand)) is not None:
            return Sum(number=number)
        if operand in _SPECIAL:
            return Sum({_SPECIAL[operand]: 1})
        value = self._values.get(operand, Sum({_name(operand): 1}))
        return Sum({f"({value})": 1}) if isinstance(value, str) else value

    def _condition(self, register: str, negated: bool = False) -> str:
        value = self._values.get(register, _name(register))
        return _negated(str(value)) if negated else str(value)

    def _value(self, opcode: str, operands: Sequence[str]) -> Sum | str | None:
        """Return what an instruction computes; None for what is no address and no condition."""
        parts = opcode.split(".")
        base, kind = parts[0], parts[-1]
        if kind == "pred":
            return self._logic(base, operands)
        if base == "setp":
            a, b = (self._whole(o) for o in operands[:2])
            found = f"{a} {_COMPARED.get(parts[1], '==')} {b}"
            joined = {"and": "&&", "or": "||"}.get(parts[2])
            return f"{found} {joined} {self._condition(operands[2])}" if joined else found
        if re.fullmatch(r"b?f\d+(?:x2)?", kind) and base != "mov":
            return None
        values = [self._operand(o) for o in operands if not o.startswith(("[", "("))]
        if len(values) < len(operands) or not values:
            return None
        if base in ("mov", "cvta", "cvt"):
            return values[0]
        return _computed(base, parts, values) if len(values) > 1 else None

    def _whole(self, operand: str) -> Sum:
        """Return a value to compare; a parameter of 64 bits is a number there."""
        value = self._operand(operand)
        return Sum({value.base: 1, **value.terms}, value.number) if value.base else value

    def _logic(self, base: str, operands: Sequence[str]) -> str | None:
        if base == "not":
            return self._condition(operands[0], negated=True)
        a, *b = map(self._condition, operands)
        joined = {"and": "&&", "or": "||", "xor": "!="}.get(base)
        return f"({a}) {joined} ({b[0]})" if joined and b else a if base == "mov" else None


def _computed(base: str, parts: Sequence[str], values: Sequence[Sum]) -> Sum | None:
    """Return what an instruction on integers computes."""
    a, b, *more = values
    if base in ("add", "or"):  # of disjoint bits, in an address
        return a.plus(b)
    if base == "sub":
        return a.plus(b, -1)
    if base in ("mul", "mul24") and "hi" not in parts:
        return _product(a, b)
    if base in ("mad", "mad24") and "hi" not in parts and more:
        return _product(a, b).plus(more[0])
    if base == "shl" and not b.terms and 0 <= b.number < 32:
        return _product(a, Sum(number=1 << b.number))
    if base == "shr" and not b.terms and 0 <= b.number < 32:
        return Sum({f"{a.factor()} / {1 << b.number}": 1})
    if base in _BETWEEN:
        return Sum({f"({a.factor()} {_BETWEEN[base]} {b.factor()})": 1})
    if base in ("min", "max"):
        return Sum({f"{base}({a}, {b})": 1})
    return None


def _product(a: Sum, b: Sum) -> Sum:
    return Sum({f"{n}": 1 for n in ("?",)}) if a.base or b.base else a.times(b)


def _statements(body: str) -> Iterator[str]:
    """Yield the instructions and labels of a function, without directives, up to its end."""
    depth = 1
    text = _VECTOR.sub(lambda found: f"({found[1]})", body)
    for part in re.findall(r"[{}]|[^{};]+", text):
        if part in "{}":
            depth += 1 if part == "{" else -1
            if not depth:
                return
            continue
        words = re.sub(r"^\s*\.(?:loc|file|section)\b[^\n]*$", " ", part, flags=re.MULTILINE)
        while label := re.match(r"\s*([\w$]+)\s*:(?!:)", words):
            yield f"{label[1]}:"
            words = words[label.end() :]
        words = " ".join(words.split())
        if words and not words.startswith("."):
            yield words


def _operands(text: str) -> list[str]:
    """Return the operands of an instruction: vectors in parentheses, addresses in brackets."""
    return [" ".join(o.split()) for o in re.findall(r"\([^)]*\)|\[[^]]*\]|[^,\s|][^,|]*", text)]


def _set_by(statement: str) -> list[str]:
    """Return the registers that a statement sets: its first operand."""
    found = _STATEMENT.match(statement)
    operands = _operands(found[4]) if found else []
    return re.findall(r"%[\w$]+", operands[0]) if operands and not operands[0].startswith("[") else []


def _number(text: str) -> int | None:
    found = re.fullmatch(r"(-?)(0[xX][\da-fA-F]+|\d+)U?", text)
    return (-1 if found[1] else 1) * int(found[2], 16 if "x" in found[2].lower() else 10) if found else None


def _strides(name: str, body: str) -> bool:
    """Return True for a parameter that multiplies indices, and is neither compared nor divided by."""
    other = r"(?:param|stride)_\d+"
    times = rf"\b{name} \* (?!{other}\b)[\w(]*[A-Za-z]|[\w.)]*[A-Za-z)][\w.]* \* {name}\b"
    besides = rf"(?:[<>]=?|[=!]=|[/%]|\b{other} \*) {name}\b|\b{name} (?:[<>!]=?|==|[/%]|\* {other}\b)"
    return bool(re.search(times, body)) and not re.search(besides, body)


def _simple(value: Sum) -> bool:
    """Return True for a name, a multiple of one, and a number."""
    return bool(re.fullmatch(r"[\w.]+(?: \* \d+)?|-?\d+", str(value)))


def _tight(name: str) -> str:
    return f"({name})" if re.search(r" [-+?] ", name) and not name.startswith("(") else name


def _negated(condition: str) -> str:
    """Return the contrary of a condition; of one comparison the other one."""
    other = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
    found = re.fullmatch(r"([^&|<>=!]+) (<|>=|>|<=|==|!=) ([^&|<>=!]+)", condition)
    return f"{found[1]} {other[found[2]]} {found[3]}" if found else f"!({condition})"


def _name(text: str) -> str:
    return re.sub(r"\W", "_", text.lstrip("%$"))
