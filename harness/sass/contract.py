"""Check expectations against machine code, and give the evidence of each finding."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.kernels.expectation import Expectation, Scope
from harness.sass.code import Code
from harness.sass.instructions import Instruction

OPCODES = frozenset(
    re.findall(
        r"\w+",
        """
    ACQBLK ACQBULK ACQSHMINIT AL2P ALD ARRIVES AST ATOM ATOMG ATOMS B2R BAR BGMMA BMMA BMOV BMSK BPT BRA BREAK
    BREV BRX BRXU BSSY BSYNC CALL CCTL CCTLL CCTLT CGAERRBAR CREDUX CS2R CS2UR DADD DEPBAR DFMA DMMA
    DMUL DSETP ELECT ENDCOLLECTIVE ERRBAR EXIT F2F F2FP F2I F2IP FADD FADD2 FADD32I FCHK FENCE FFMA
    FFMA2 FFMA32I FHADD FHFMA FLO FMNMX FMNMX3 FMUL FMUL2 FMUL32I FRND FSEL FSET FSETP FSWZADD
    GETLMEMBASE HADD2 HADD2_32I HFMA2 HFMA2_32I HGMMA HMMA HMNMX2 HMUL2 HMUL2_32I HSET2 HSETP2 I2F I2FP
    I2I I2IP IABS IADD IADD3 IADD32I IDP IDP4A IGMMA IMAD IMMA IMNMX IMUL IMUL32I IPA ISCADD ISCADD32I
    ISETP JMP JMX JMXU KILL LD LDC LDCU LDG LDGDEPBAR LDGMC LDGSTS LDL LDS LDSM LDT LDTM LEA LEPC LOP
    LOP3 LOP32I MATCH MEMBAR MOV MOV32I MOVM MUFU NANOSLEEP NOP OMMA OUT P2R PIXLD PLOP3 PMTRIG POPC
    PREEXIT PRMT PSETP QGMMA QMMA QSPC R2B R2P R2UR RED REDAS REDG REDUX RET RPCMOV RTT S2R S2UR SEL
    SETCTAID SETLMEMBASE SGXT SHF SHFL SHL SHR ST STAS STG STL STS STSM STT STTM SUATOM SULD SURED SUST
    SYNCS SYNCSU TEX TLD TLD4 TMML TXD TXQ UBLKCP UBLKPF UBLKRED UBMSK UBREV UCGABAR_ARV UCGABAR_WAIT
    UCLEA UF2F UF2FP UF2I UF2IP UFADD UFFMA UFLO UFMNMX UFMUL UFRND UFSEL UFSET UFSETP UGETNEXTWORKID
    UI2F UI2FP UI2I UI2IP UIABS UIADD3 UIMAD UIMNMX UISETP ULDC ULEA ULEPC ULOP ULOP3 ULOP32I UMEMSETS
    UMOV UP2UR UPLOP3 UPOPC UPRMT UPSETP UR2UP UREDGR USEL USETMAXREG USETSHMSZ USGXT USHF USHL USHR
    USTGR UTCATOMSWS UTCBAR UTCCP UTCHMMA UTCIMMA UTCOMMA UTCQMMA UTCSHIFT UTMACCTL UTMACMDFLUSH UTMALDG
    UTMAPF UTMAREDG UTMASTG UVIADD UVIMNMX UVIRTCOUNT VABSDIFF VABSDIFF4 VHMNMX VIADD VIADDMNMX VIMNMX
    VIMNMX3 VOTE VOTEU WARPGROUP WARPGROUPSET WARPSYNC YIELD
    """,
    )
)


_NOT_IN_CUBIN = "a cubin does not say; 'no STL' and 'no LDL' look at the code itself"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of checking one expectation.

    `actual` is the metric, count or share that was found; None if it could not be determined, for the reason
    in `note`. `evidence` holds the instructions that were counted, in address order. `note` may also warn
    that no known architecture has such an opcode.
    """

    expectation: Expectation
    holds: bool
    actual: float | None
    evidence: tuple[Instruction, ...] = ()
    note: str = ""

    @property
    def amount(self) -> str:
        """`actual` as text: ``4`` or ``28.1%``, or the reason why there is none."""
        if self.actual is None:
            return self.note
        return f"{self.actual:.1%}" if self.expectation.kind == "share" else f"{self.actual:g}"


def check(expectations: Sequence[Expectation], code: Code) -> list[Finding]:
    """Check every expectation against the code, and return the findings in the same order.

    An expectation about a loop that does not exist does not hold, not even ``no X in loop``.
    """
    return [_check(e, code) for e in expectations]


def _check(e: Expectation, code: Code) -> Finding:
    """Check one expectation against the code."""
    if e.kind == "metric":
        known = code.metric(e.subject)
        if known is None:
            note = _NOT_IN_CUBIN if e.subject == "spills" else "a device function: its callers' count"
            return Finding(expectation=e, holds=False, actual=None, note=note)
        return Finding(expectation=e, holds=e.holds(known), actual=known)
    instructions, missing = _instructions(e.scope, code)
    if instructions is None:
        return Finding(expectation=e, holds=False, actual=None, note=missing)
    evidence = tuple(i for i in instructions if i.matches(e.subject))
    actual = len(evidence) / len(instructions) if e.kind == "share" else len(evidence)
    note = "" if evidence else _spelling(e.subject, code)
    return Finding(expectation=e, holds=e.holds(actual), actual=actual, evidence=evidence, note=note)


def _instructions(scope: Scope, code: Code) -> tuple[tuple[Instruction, ...] | None, str]:
    """Return the instructions of a scope and "", or None and the reason why there is no such loop.

    If several innermost loops have code of the given line (an unrolled loop and its remainder, say), the one
    with the most work is taken.
    """
    if scope.name == "kernel":
        return code.sass.instructions, ""
    if not code.loops:
        return None, "the code has no loop"
    if scope.line is None:
        return code.hot_loop.instructions if code.hot_loop else None, ""
    if not code.sass.has_lines:
        return None, "the code has no source lines (CUDA C++ and nvdisasm 13.4 or newer give them)"
    at = [loop for loop in code.loops if any(i.line == scope.line for i in loop.instructions)]
    if not at:
        return None, f"no loop has code of line {scope.line}"
    inner = [a for a in at if not any(a.contains(b) for b in at)]  # an unrolled loop and its remainder, say
    return max(inner, key=lambda loop: loop.work).instructions, ""


def _spelling(pattern: str, code: Code) -> str:
    """Return a warning if neither the code nor the list of known opcodes has this pattern's opcode.

    Otherwise return "". Without the warning a misspelled ``no LDLL`` would hold unnoticed.
    """
    base = pattern.split(".", maxsplit=1)[0]
    here = {i.opcode.split(".")[0] for i in code.sass.instructions}
    if base in here | OPCODES:
        return ""
    close = difflib.get_close_matches(base, sorted(here | OPCODES), n=1)
    return f"{base} is no opcode known here" + (f"; did you mean {close[0]}?" if close else "")
