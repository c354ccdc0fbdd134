"""Read one entry of PTX: what it computes addresses and conditions from, statement after statement."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from harness.kernels.cpp.source.ptx import assembly, conventions, lines
from harness.kernels.cpp.source.ptx.assembly import STATEMENT, name_of
from harness.kernels.cpp.source.ptx.lines import CPP, ELEMENTS, NUMBERS, REGISTER, element, used
from harness.kernels.cpp.source.ptx.sums import Sum, compared, computed, negated, simple

_ADDRESS = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+)\s*)?\]")
_SPECIAL = {
    f"%{register}.{axis}": f"{name}.{axis}"
    for register, name in (
        ("tid", "threadIdx"),
        ("ctaid", "blockIdx"),
        ("ntid", "blockDim"),
        ("nctaid", "gridDim"),
    )
    for axis in "xyz"
} | {"%laneid": "(threadIdx.x & 31)", "%warpid": "(threadIdx.x / 32)", "WARP_SZ": "32"}
_ASKED = "int MaxDynamicSharedMemorySize;"
_MOST = 64  # elements of an access that are written out; of a longer one the first and last are
_LONGEST = 400  # characters of a value; a longer one is a variable


class Kernel:
    """One entry: its registers' values while its statements are read, one after the other."""

    def __init__(self, entry: assembly.Entry) -> None:
        self._entry = entry
        self._statements = list(assembly.statements(entry.body))
        self._labels = {  # behind which nothing but the end comes
            s for s, n in zip(self._statements, self._statements[1:], strict=False) if n in ("ret", "exit")
        }
        self._uses = Counter(word for s in self._statements for word in REGISTER.findall(s))
        self._set = Counter(name for s in self._statements for name in assembly.set_by(s))
        self._types = used(self._statements)
        self._bytes, self._kinds = dict[str, int](), dict[str, set[str]]()
        self._written = set[str]()
        self._values, self._lines = dict[str, Sum | str](), list[str]()
        self._made, self._extents = "", list[str]()
        self.parts, self._items = conventions.of(entry, {}), dict[str, int]()
        self._widest = dict[str, int]()  # bytes of an access, at whose multiples elements begin
        known = {
            p.of_entry: assembly.members(entry, p)
            for p in entry.parameters
            if p.bytes and p.of_entry not in self.parts
        }
        self._structs = {name: members for name, members in known.items() if members}

    def text(self) -> str:
        """Return the function. It is read twice: the second time with the sizes of elements."""
        for _ in range(2):
            items = {n: -(-end // self._widest[n]) * self._widest[n] for n, end in self._items.items()}
            self.parts = conventions.of(self._entry, items)
            self._values, self._lines = {}, [f"{name_of(n)};" for n in self._entry.dynamic]
            for statement in self._statements:
                # Where operands are missing the assembler says so.
                with contextlib.suppress(IndexError, ValueError):
                    self._read(statement)
        # How much dynamic shared memory it has is not in PTX: it may be all that there is.
        shared = "".join(f"extern __shared__ char {name_of(n)}[]; {_ASKED}\n" for n in self._entry.dynamic)
        shared += "".join(
            map(self._struct, (p for p in self._entry.parameters if p.of_entry in self._structs))
        )
        head = f" __launch_bounds__({self._entry.threads})" if self._entry.threads else ""
        listed = ", ".join(part for p in self._entry.parameters for part in self._declared(p))
        body = "\n".join(f"    {line}" for line in lines.needed(self._lines))
        whole = f"{shared}__global__ void{head} {self._entry.name}({listed})\n{{\n{body}\n}}\n"
        for name in (p.name for p in self._entry.parameters if p.of_entry not in self.parts):
            if name not in self._bytes and f"{name}." not in body and lines.strides(name, body):
                whole = re.sub(rf"\b{name}\b", name.replace("param", "stride"), whole)
        return whole

    def _declared(self, p: assembly.Parameter) -> list[str]:
        """Return the declaration of a parameter, or of its parts that follow from no others."""
        if p.of_entry in self.parts:
            parts = (part for part in self.parts[p.of_entry] if part.name)
            return [
                self._pointer(part.name) if part.pointer else f"{NUMBERS[part.type]} {part.name}"
                for part in parts
            ]
        if p.name in self._bytes or p.pointer:
            return [self._pointer(p.name)]
        if p.of_entry in self._structs:
            return [f"{self._entry.name}_{p.name} {p.name}"]
        return [f"struct_of_{p.bytes}_bytes {p.name}" if p.bytes else self._number(p.type, p.name, p.name)]

    def _pointer(self, name: str) -> str:
        """Return the declaration of a pointer."""
        return f"{'' if name in self._written else 'const '}{self._element(name)}* {name}"

    def _struct(self, p: assembly.Parameter) -> str:
        """Return the declaration of a struct by value, with what is loaded from it as members."""
        listed = []
        for at, kind in self._structs[p.of_entry].items():
            name = f"{p.name}.m{at}"
            if name in self._bytes:
                listed.append(f"{'' if name in self._written else 'const '}{self._element(name)}* m{at};")
            else:
                listed.append(f"{self._number(kind, name, f'm{at}')};")
        return f"struct {self._entry.name}_{p.name} {{ {' '.join(listed)} }};\n"

    def _number(self, kind: str, value: str, name: str) -> str:
        """Return the declaration of a number as `name`: floating-point if registers with its value are."""
        if kind == "b32" and any("f32" in self._types.get(r, ()) for r in self._held(value)):
            return f"float {name}"
        return f"{NUMBERS.get(kind) or CPP.get(kind, 'int')} {name}"

    def _held(self, name: str) -> Iterator[str]:
        return (r for r, value in self._values.items() if isinstance(value, Sum) and str(value) == name)

    def _element(self, name: str) -> str:
        """Return the type of what a pointer leads to."""
        return element(self._kinds.get(name, {"b32"}), self._bytes.get(name, 4))

    # -- statements

    def _read(self, statement: str) -> None:
        if statement.endswith(":"):
            return
        if (found := STATEMENT.match(statement)) is None:
            return
        but, guard, opcode, rest = found.groups()
        condition = self._condition(guard, otherwise=bool(but)) if guard else ""
        base, operands = opcode.split(".")[0], assembly.operands(rest)
        if base in ("ret", "exit"):
            self._line("return;", condition)
        elif base in ("bar", "barrier"):
            self._line("__syncthreads();", condition)
        elif not operands:
            return
        elif base in ("ld", "ldu", "st", "atom", "red", "cp"):
            self._access(opcode, operands, condition)
        elif base == "tensormap":
            self._map(opcode.split("."), operands)
        elif base == "bra":
            end = f"{operands[0]}:" in self._labels
            self._line("return;" if end else f"goto {name_of(operands[0])};", condition)
        else:
            self._assign(operands[0], self._value(opcode, operands[1:]), condition)

    def _line(self, text: str, condition: str = "") -> None:
        self._lines.append(f"if ({condition}) {text}" if condition else text)

    def _assign(self, register: str, value: Sum | str | None, condition: str) -> None:
        """Give a register its value: that of a variable where it is used, or set, several times."""
        name = name_of(register)
        if self._set[register] > 1:
            self._vary(register, value, condition)
        elif isinstance(value, str) and len(value) > _LONGEST:
            self._line(f"bool {name} = {value};")
            self._values[register] = name
        elif isinstance(value, str):  # a condition
            self._values[register] = value
        elif value is None:
            self._values[register] = Sum({name: 1})
        elif value.base or simple(value) or (self._uses[register] < 3 and len(str(value)) < _LONGEST):
            self._values[register] = value
        else:
            factor = math.gcd(value.number, *value.terms.values())  # of bytes, an element's
            self._line(f"int {name} = {value.over(factor)};", condition)
            self._values[register] = Sum({name: factor})

    def _vary(self, register: str, value: Sum | str | None, condition: str) -> None:
        """Give a register that is set several times its value; of a pointer that walks, its place."""
        before = self._values.get(register)
        base = next((v.base for v in (value, before) if isinstance(v, Sum) and v.base), "")
        size = self._bytes.get(base, 1) if base else 1
        if isinstance(value, Sum):
            self._line(f"{name_of(register)} = {value.over(size)};", condition)
        self._values[register] = Sum({name_of(register): size}, 0, base)

    def _access(self, opcode: str, operands: Sequence[str], condition: str) -> None:
        """Write an access to where a parameter leads; of what is loaded from elsewhere nothing is known."""
        parts, places = opcode.split("."), [o for o in operands if o.startswith("[")]
        loaded = REGISTER.findall(operands[0]) if parts[0] in ("ld", "ldu", "atom") else []
        if parts[:2] == ["ld", "param"] and places:
            for n, register in enumerate(loaded):
                self._assign(register, self._argument(places[0], n, parts[-1]), condition)
            return
        if "tensor" in parts:  # where a box lies says how many there are
            corners = (r for o in places for r in REGISTER.findall(o.partition("(")[2]))
            self._lines += [f"corner = {self._operand(r)};" for r in corners]
        at = next((found for o in places if (found := self._place(o)) is not None and found.base), None)
        if at is None:
            for register in loaded:
                self._assign(register, None, condition)
            return
        others = [r for o in operands if o not in places for r in re.findall(r"[%\w$.-]+", o)]
        values = others if parts[0] == "st" else loaded
        width = self._touch(at.base, parts, others)
        whole = int(others[0]) if parts[0] == "cp" and others and others[0].isdecimal() else width
        whole *= len(values) if parts[0] in ("ld", "ldu", "st") else 1
        count, end = whole // self._bytes[at.base], at.number + whole
        self._items[at.base] = max(end, self._items.get(at.base, width))
        self._widest[at.base] = max(min(width, 8), self._widest.get(at.base, 1))
        if count > 1:
            self._lines.append("float4;")  # the places may be multiples
        for n in range(max(1, count)) if count <= _MOST else (0, count - 1):
            place = f"{at.base}[{at.over(self._bytes[at.base]).plus(Sum(number=n))}]"
            value = values[n * len(values) // max(1, count)] if values else ""
            given = [self._operand(o).as_number() for o in ([value] if parts[0] == "st" else others)]
            self._line(lines.access(parts, place, value, given), condition)
        for register in loaded:
            self._values[register] = Sum({name_of(register): 1})

    def _map(self, parts: Sequence[str], operands: Sequence[str]) -> None:
        """Note what a tensor map is made of; once it is, write an access to all of its tensor."""
        name, value = parts[3] if len(parts) > 3 else "", self._operand(operands[-1])
        if name == "global_address":
            self._made, self._extents = value.base, []
        elif name == "global_dim":
            self._extents.append(value.factor())
        elif name == "elemtype" and self._made:
            self._touch(self._made, ["st", ELEMENTS.get(value.number, "b32")], [])
        elif "cp_fenceproxy" in parts and self._made and self._extents:
            index = f"i{len(self._extents) - 1}"
            for n in reversed(range(len(self._extents) - 1)):
                index = f"({index}) * {self._extents[n]} + i{n}"
            loops = [f"for (int i{n} = 0; i{n} < {e}; i{n}++)" for n, e in enumerate(self._extents)]
            self._lines += ["float4;", f"{' '.join(loops[::-1])} {self._made}[{index}] = 0;"]
            if (place := self._place(operands[0])) is not None and place.base:
                self._touch(place.base, ["st", "b64"], [])  # one for each block, wherever that is

    def _touch(self, pointer: str, parts: Sequence[str], values: Sequence[str]) -> int:
        """Note how a pointer is used, and return the bytes of an access to one of `values`.

        Its narrowest access is an element, and the element's type is what its values are used as.
        """
        kind = next((p for p in parts if p in CPP), "b32")
        if parts[0] in ("atom", "red"):
            kind = kind.replace("b", "u") if kind in ("b32", "b64") else kind  # of flags and locks
        used = {t for register in values for t in self._types.get(register, ())}
        width = 16 if "b128" in parts else assembly.bytes_of(kind)
        halves = used & {"f16", "f16x2", "bf16", "bf16x2"} and "f32" not in used
        element = 2 if halves else min(width, 4) if "b128" in parts else width
        self._bytes[pointer] = min(element, self._bytes.get(pointer, element))
        fitting = {t for t in used if t in CPP and (t[0] not in "us" or t[1:] == str(8 * width))}
        self._kinds.setdefault(pointer, set()).update(fitting or {kind})
        if parts[0] not in ("ld", "ldu", "cp"):
            self._written.add(pointer)
        return width

    # -- values

    def _argument(self, place: str, number: int, kind: str) -> Sum | None:
        """Return what is loaded from a parameter, as one of several numbers of a kind."""
        found = _ADDRESS.match(place)
        for p in self._entry.parameters:
            known = not p.bytes or p.of_entry in self._structs or p.of_entry in self.parts
            if not found or p.of_entry != found[1] or not known:
                continue
            at = int(found[2] or 0) + number * assembly.bytes_of(kind)
            if p.of_entry in self.parts:
                return next((lines.part(part) for part in self.parts[p.of_entry] if part.at == at), None)
            name, kind = (f"{p.name}.m{at}", kind) if p.bytes else (p.name, p.type)
            return Sum(base=name) if p.pointer or kind in ("u64", "b64") else Sum({name: 1})
        return None

    def _place(self, place: str) -> Sum | None:
        found = _ADDRESS.match(place)
        value = self._values.get(found[1]) if found else None
        if found is None or not isinstance(value, Sum):
            return None
        return value.plus(Sum(number=assembly.number(found[2] or "0") or 0))

    def _operand(self, operand: str) -> Sum:
        """Return the value of an operand; of a pointer as a number it is its name."""
        if (number := assembly.number(operand)) is not None:
            return Sum(number=number)
        if operand in _SPECIAL:
            return Sum({_SPECIAL[operand]: 1})
        value = self._values.get(operand, Sum({name_of(operand): 1}))
        return Sum({f"({value})": 1}) if isinstance(value, str) else value

    def _condition(self, register: str, *, otherwise: bool = False) -> str:
        value = self._values.get(register, name_of(register))
        return negated(str(value)) if otherwise else str(value)

    def _value(self, opcode: str, operands: Sequence[str]) -> Sum | str | None:
        """Return what an instruction computes; None for what is no address and no condition."""
        parts = opcode.split(".")
        base, kind = parts[0], parts[-1]
        if kind == "pred":
            return self._logic(base, operands)
        if base == "setp" and len(operands) > 1:
            a, b = (self._operand(o).as_number() for o in operands[:2])
            found = compared(a, parts[1], b)
            joined = {"and": "&&", "or": "||"}.get(parts[2])
            return f"{found} {joined} {self._condition(operands[2])}" if joined else found
        if re.fullmatch(r"b?f\d+(?:x2)?", kind) and base != "mov":
            return None
        values = [self._operand(o) for o in operands if not o.startswith(("[", "("))]
        if len(values) < len(operands) or not values:
            return None
        if base in ("mov", "cvta", "cvt"):
            return values[0]
        return computed(base, parts, values) if len(values) > 1 else None

    def _logic(self, base: str, operands: Sequence[str]) -> str | None:
        if base == "not":
            return self._condition(operands[0], otherwise=True)
        a, *b = map(self._condition, operands)
        joined = {"and": "&&", "or": "||", "xor": "!="}.get(base)
        return f"({a}) {joined} ({b[0]})" if joined and b else a if base == "mov" else None
