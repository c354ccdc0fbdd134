"""Which kernels of a folder the emulator decodes, and what it refuses of the others.

    python scripts/coverage.py FOLDER [FOLDER ...]

Each .ptx file below a folder is parsed and every entry decoded; nothing is run. `nvcc -ptx` or NVRTC make
the files. Counted by the folder in which a file lies: entries, those decoded, and for each reason the entries
that it holds back, and those that nothing else does.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

import harness.emulator  # noqa: F401 - its instructions register themselves
from harness.emulator.decode import Decoder
from harness.emulator.ptx.module import parse
from harness.emulator.ptx.program import Entry
from harness.errors import EmulatorError
from harness.results.tables import plain_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    found = [f for folder in parser.parse_args().folders for f in sorted(folder.rglob("*.ptx"))]
    if not found:
        sys.exit("error: no .ptx file there")
    entries, decoded, held, alone = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for file in found:
        for reasons in kernels(file.read_text(errors="replace")):
            entries[file.parent.name] += 1
            decoded[file.parent.name] += not reasons
            held.update(reasons)
            alone.update(reasons if len(reasons) == 1 else ())
    rows = [
        [name, str(decoded[name]), str(count), f"{decoded[name] / count:.1%}"]
        for name, count in entries.items()
    ]
    everything, all_decoded = sum(entries.values()), sum(decoded.values())
    rows.append(["all", str(all_decoded), str(everything), f"{all_decoded / max(1, everything):.1%}"])
    print(plain_table(rows, ["folder", "decoded", "entries", "share"]))
    if held:
        reasons_table = [[reason, str(count), str(alone[reason])] for reason, count in held.most_common()]
        print("\n" + plain_table(reasons_table, ["reason", "entries", "alone"]))


def kernels(text: str) -> list[set[str]]:
    """Return for each entry of a PTX text why it is refused; an empty set if it is not."""
    try:
        return [refusals(entry) for entry in parse(text).values()]
    except EmulatorError as error:
        return [{reason(error)}] * max(1, len(re.findall(r"\.entry\b", text)))


def refusals(entry: Entry) -> set[str]:
    """Return the reasons for which an entry is refused, each once."""
    decoder, found = Decoder(entry), set()
    for instruction in entry.instructions:
        try:
            decoder.step(instruction)
        except EmulatorError as error:
            found.add(reason(error))
    return found


def reason(error: EmulatorError) -> str:
    """Return the first line of an error, without the numbers and registers of the one place."""
    return re.sub(r"%\w+|\b\d+\b", "_", str(error).splitlines()[0])[:90]


if __name__ == "__main__":
    main()
