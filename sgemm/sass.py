"""Reads SASS, the machine code of a GPU, as nvdisasm and cuobjdump print it.

Imports only the standard library, so that the benchmarks can read an old commit's cubins with the
checkout's reader.
"""

import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from itertools import pairwise
from pathlib import Path

KERNEL = "sgemm"  # what every kernel of the ladder is called

_FUNCTION = re.compile(r"^\.text\.(\S+):|^\s*Function : (\S+)")
_END_OF_FUNCTION = re.compile(r"^\s*\.section\s")
_LABEL = re.compile(r"^(\.L_\S+):")
_INSTRUCTION = re.compile(
    r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;"
)
_ENCODING = re.compile(r"/\* 0x([0-9a-f]{16}) \*/\s*$")
_REGISTER = re.compile(r"(?<![\w.])R(\d+)(\.reuse)?")
_FIRST_WORDS = {
    "global load": ("LDG",),
    "shared load": ("LDS",),
    "shared store": ("STS",),
    "global store": ("STG",),
    "asynchronous copy": ("LDGSTS",),
    "bulk copy": ("UBLKCP", "UBLKPF", "UBLKRED", "UTMALDG", "UTMASTG", "UTMAREDG"),
    "local memory": ("LDL", "STL"),
    "barrier": ("BAR", "SYNCS"),
    "branch": (
        *("BRA", "BRX", "BRXU", "JMP", "JMX", "CALL", "RET", "EXIT", "KILL", "NANOSLEEP"),
        *("BSSY", "BSYNC", "BREAK", "BMOV", "WARPSYNC", "YIELD", "BPT"),
    ),
    "address": (
        *("IADD", "IADD3", "UIADD3", "IMAD", "UIMAD", "LEA", "ULEA", "SHF", "USHF", "SHL", "SHR"),
        *("LOP", "LOP3", "ULOP3", "IMNMX", "UIMNMX", "VIMNMX", "VIMNMX3", "VIADD", "UVIADD"),
        *("VIADDMNMX", "IABS", "IADD64", "ISETP", "UISETP", "R2UR", "S2R", "S2UR"),
    ),
}
"""Kind of instruction to the words that its opcodes begin with."""

_WINDOW = 3  # cycles in which an instruction's operands are read
SHARED_LOAD_CYCLES = 24
"""No load from shared memory whose address is in a register has its result sooner (Huerta et al.,
arXiv 2503.20481, table 2)."""
SOURCES_CYCLES = 9
"""No memory access has read its registers sooner (there)."""

_KINDS = {word: kind for kind, words in _FIRST_WORDS.items() for word in words}
_BRANCHES = ("BRA", "BRX", "JMP")
_ENDS = ("EXIT", "RET", "KILL")
_STORES = ("STS", "STG", "STL", "ST", "RED")
_NO_COUNTER = 7


@dataclass(frozen=True)
class Control:
    """What the compiler tells the scheduler with an instruction.

    ``stall`` is how many cycles the warp's next instruction waits at least. A warp has six
    counters: the one numbered ``result`` counts results that have not arrived, ``sources`` those
    instructions that have not read their registers, and before the instruction goes those of
    ``waits`` have to be zero.
    """

    stall: int = 1
    result: int | None = None
    sources: int | None = None
    waits: tuple[int, ...] = ()

    @classmethod
    def of(cls, upper: int) -> "Control":
        """From the upper half of an instruction's encoding."""
        stall, result, sources, waits = (
            upper >> first & (1 << bits) - 1 for first, bits in ((41, 4), (46, 3), (49, 3), (52, 6))
        )
        return cls(
            max(stall, 1),
            None if result == _NO_COUNTER else result,
            None if sources == _NO_COUNTER else sources,
            tuple(counter for counter in range(6) if waits >> counter & 1),
        )


@dataclass(frozen=True)
class Instruction:
    """One instruction, such as ``@!P0 LDS.128 R4, [R8+0x10]``.

    ``address`` is in bytes from the start of the kernel, ``target`` is where a branch goes.
    """

    address: int
    predicate: str
    opcode: str
    operands: str
    target: int | None = None
    control: Control = Control()

    @property
    def word(self) -> str:
        """The opcode without its modifiers: ``LDS``."""
        return self.opcode.partition(".")[0]

    @property
    def kind(self) -> str:
        """What it is there for; ``""`` for what has no kind of its own."""
        return _KINDS.get(self.word, "")

    @property
    def bits(self) -> int:
        """How wide a memory access is for one thread."""
        width = re.search(r"\.(?:U?(128|64)|[US](16|8))\b", self.opcode)
        return int(width[1] or width[2]) if width else 32

    @cached_property
    def registers(self) -> tuple[tuple[int, bool], ...]:
        """The registers named by the operands, in order, each with whether it is ``.reuse``."""
        return tuple((int(n), bool(reuse)) for n, reuse in _REGISTER.findall(self.operands))

    @property
    def written(self) -> range:
        """The registers that it writes."""
        first = re.match(r"R(\d+)", self.operands)
        if first is None or self.word in _STORES:
            return range(0)
        width = (
            self.bits // 32 if self.kind in ("global load", "shared load", "local memory") else 1
        )
        return range(int(first[1]), int(first[1]) + max(width, 1))

    @property
    def read(self) -> Iterator[int]:
        """The registers that it reads; of operands wider than 32 bits, a store's whole and others'
        first."""
        sources = [n for n, _ in self.registers][1 if self.written else 0 :]
        yield from sources
        if self.word in _STORES and sources:
            yield from range(sources[-1] + 1, sources[-1] + self.bits // 32)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.predicate, self.opcode, self.operands)))


def find_disassembler() -> str | None:
    """The nvdisasm of the installed wheel, else that of a CUDA toolkit on the PATH."""
    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "nvdisasm":
            return str(file.locate())
    return shutil.which("nvdisasm")


def disassemble(disassembler: str, cubin: Path) -> str:
    """What nvdisasm prints of a cubin; CalledProcessError where it cannot read it."""
    command = [disassembler, "--print-code", "--print-instruction-encoding", str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def parse(listing: str, function: str = KERNEL) -> list[Instruction]:
    """The instructions of one function, in order; ValueError where ``listing`` has none of them.

    Left out is what does nothing: instructions predicated ``@!PT`` and the NOP that fill the end.
    Where the listing has no encodings, an instruction's ``control`` is that of one that waits for
    nothing.
    """
    labels: dict[str, int] = {}
    waiting: list[str] = []  # labels of the instruction to come
    found: list[tuple[int, str, str, str]] = []
    controls: dict[int, Control] = {}  # by address
    inside = False
    for line in listing.splitlines():
        if match := _FUNCTION.match(line):
            inside = (match[1] or match[2]) == function
        elif _END_OF_FUNCTION.match(line):
            inside = False
        elif not inside:
            continue
        elif match := _LABEL.match(line):
            waiting.append(match[1])
        elif match := _INSTRUCTION.match(line):
            address, predicate, opcode, operands = match.groups(default="")
            labels |= dict.fromkeys(waiting, int(address, 16))
            waiting.clear()
            found.append((int(address, 16), predicate, opcode, " ".join(operands.split())))
        elif found and (match := _ENCODING.match(line.lstrip())):
            controls.setdefault(found[-1][0], Control.of(int(match[1], 16)))
    instructions = [
        Instruction(
            address,
            predicate,
            opcode,
            operands,
            _target(opcode, operands, labels),
            controls.get(address, Control()),
        )
        for address, predicate, opcode, operands in found
        if predicate != "@!PT"
    ]
    while instructions and instructions[-1].word == "NOP":
        instructions.pop()
    if not instructions:
        raise ValueError(f"no instructions of {function!r} in the listing")
    return instructions


def _target(opcode: str, operands: str, labels: Mapping[str, int]) -> int | None:
    if opcode.partition(".")[0] not in _BRANCHES:
        return None
    label = re.search(r"`\((\S+)\)", operands)
    if label:
        return labels.get(label[1])
    address = re.search(r"0x[0-9a-f]+$", operands)
    return int(address[0], 16) if address else None


def main_loop(instructions: Sequence[Instruction]) -> list[Instruction]:
    """One pass through the main loop: the innermost loop with the most FFMA. Empty without one.

    Where the loop branches, the pass is that of a whole tile: of all ways with the most FFMA the
    one that copies the most bytes, and of those the shortest. A wait inside the loop, which is a
    loop of its own, is passed once.
    """
    return max(_innermost(instructions, _multiplies), key=_ffma, default=[])


def producer_loop(instructions: Sequence[Instruction]) -> list[Instruction]:
    """One pass through the loop of warps that only copy, by the same way as through the main loop.
    Empty without one."""

    def only_copies(body: Sequence[Instruction]) -> bool:
        copies = any(i.kind in ("asynchronous copy", "bulk copy") for i in body)
        return copies and not _multiplies(body)

    return max(_innermost(instructions, only_copies), key=len, default=[])


def _innermost(
    instructions: Sequence[Instruction], counts: Callable[[Sequence[Instruction]], bool]
) -> list[list[Instruction]]:
    """A pass through each loop whose body ``counts``, of those in each other through the inner."""
    graph = _Graph(instructions)
    loops = [
        body
        for body in graph.loops.values()
        if counts([instruction for block in body for instruction in graph.blocks[block]])
    ]
    return [graph.pass_through(body) for body in loops if not any(other < body for other in loops)]


def _multiplies(body: Iterable[Instruction]) -> bool:
    return _ffma(body) > 0


def _ffma(instructions: Iterable[Instruction]) -> int:
    return sum(instruction.word == "FFMA" for instruction in instructions)


def _merit(block: Sequence[Instruction]) -> tuple[int, int, int]:
    """By which ways through a loop are compared; the sum over its blocks counts."""
    copied = sum(
        instruction.bits
        for instruction in block
        if instruction.kind in ("global load", "asynchronous copy", "shared store")
    )
    return _ffma(block), copied, -len(block)


class _Graph:
    """The basic blocks of a kernel, each a list of instructions, and the ways between them."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        starts = {instructions[0].address}
        for instruction, after in pairwise(instructions):
            if instruction.word in (*_BRANCHES, *_ENDS):
                starts.add(after.address)
            if instruction.target is not None:
                starts.add(instruction.target)
        self.blocks: list[list[Instruction]] = []
        for instruction in instructions:
            if instruction.address in starts:
                self.blocks.append([])
            self.blocks[-1].append(instruction)
        at = {block[0].address: index for index, block in enumerate(self.blocks)}
        self.successors = [list(self._successors(index, at)) for index in range(len(self.blocks))]
        self.order = self._reverse_postorder()
        self.predecessors: dict[int, list[int]] = defaultdict(list)
        for block in self.order:
            for successor in self.successors[block]:
                self.predecessors[successor].append(block)
        self.loops = self._natural_loops()

    def _successors(self, index: int, at: Mapping[int, int]) -> Iterator[int]:
        last = self.blocks[index][-1]
        if last.target is not None and last.target in at:
            yield at[last.target]
        # `BRA.U UP0` and `BRA P1` have their condition among the operands.
        always = not last.predicate and not re.match(r"!?U?P", last.operands)
        ends = last.word in _ENDS or last.word in _BRANCHES
        if not (ends and always) and index + 1 < len(self.blocks):
            yield index + 1

    def _reverse_postorder(self) -> list[int]:
        order: list[int] = []
        seen = {0}
        stack = [(0, iter(self.successors[0]))]
        while stack:
            block, successors = stack[-1]
            following = next((s for s in successors if s not in seen), None)
            if following is None:
                order.append(block)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(self.successors[following])))
        return order[::-1]

    def _dominators(self) -> dict[int, int]:
        """Block to its immediate dominator, by Cooper, Harvey and Kennedy's algorithm."""
        rank = {block: position for position, block in enumerate(self.order)}
        dominator = {0: 0}
        changed = True
        while changed:
            changed = False
            for block in self.order[1:]:
                known = [p for p in self.predecessors[block] if p in dominator]
                new = known[0]
                for other in known[1:]:
                    while new != other:
                        if rank[new] > rank[other]:
                            new = dominator[new]
                        else:
                            other = dominator[other]
                if dominator.get(block) != new:
                    dominator[block] = new
                    changed = True
        return dominator

    def _natural_loops(self) -> dict[int, set[int]]:
        """First block of each loop to all its blocks. A jump back makes a loop only where every way
        to it leads through its target: code that is moved out of a loop's line jumps back too."""
        dominator = self._dominators()
        loops: dict[int, set[int]] = {}
        for last in self.order:
            for first in self.successors[last]:
                ancestor = last
                while ancestor != first and ancestor != 0:
                    ancestor = dominator[ancestor]
                if ancestor != first:
                    continue
                body = loops.setdefault(first, {first})
                waiting = [last]
                while waiting:
                    block = waiting.pop()
                    if block not in body:
                        body.add(block)
                        waiting += self.predecessors[block]
        return loops

    def pass_through(self, body: set[int]) -> list[Instruction]:
        """The best way by ``_merit`` from a loop's first block back to it."""
        order = [block for block in self.order if block in body]
        first = order[0]
        rank = {block: position for position, block in enumerate(order)}
        best: dict[int, tuple[tuple[int, ...], list[int]]] = {
            first: (_merit(self.blocks[first]), [first])
        }
        ends = []
        for block in order:
            merit, way = best[block]
            for successor in self.successors[block]:
                if successor == first:
                    ends.append(best[block])
                elif successor in rank and rank[successor] > rank[block]:
                    total = tuple(map(sum, zip(merit, _merit(self.blocks[successor]), strict=True)))
                    if successor not in best or total > best[successor][0]:
                        best[successor] = (total, [*way, successor])
        _, way = max(ends)
        return [instruction for block in way for instruction in self.blocks[block]]


@dataclass(frozen=True)
class Counts:
    """How many instructions of each kind there are.

    ``unfused`` are the FADD whose operand an FMUL has made: multiply-adds in two instructions.
    ``global_loads``, ``shared_loads`` and ``asynchronous_copies`` are by the bits of an access.
    ``local_accesses`` are those to spilled registers, ``addresses`` are integer instructions,
    comparisons included.
    """

    instructions: int
    ffma: int
    fmul: int
    fadd: int
    unfused: int
    global_loads: dict[int, int]
    shared_loads: dict[int, int]
    shared_stores: int
    asynchronous_copies: dict[int, int]
    bulk_copies: int
    local_accesses: int
    barriers: int
    addresses: int
    branches: int

    @property
    def ffma_share(self) -> float:
        """FFMA as a fraction of the instructions."""
        return self.ffma / self.instructions if self.instructions else 0.0


def count(instructions: Sequence[Instruction]) -> Counts:
    """Count one pass through ``instructions``."""
    words = Counter(instruction.word for instruction in instructions)
    kinds = Counter(instruction.kind for instruction in instructions)

    def by_bits(kind: str) -> dict[int, int]:
        return dict(sorted(Counter(i.bits for i in instructions if i.kind == kind).items()))

    return Counts(
        instructions=len(instructions),
        ffma=words["FFMA"],
        fmul=words["FMUL"],
        fadd=words["FADD"],
        unfused=_unfused(instructions),
        global_loads=by_bits("global load"),
        shared_loads=by_bits("shared load"),
        shared_stores=kinds["shared store"],
        asynchronous_copies=by_bits("asynchronous copy"),
        bulk_copies=kinds["bulk copy"],
        local_accesses=kinds["local memory"],
        barriers=kinds["barrier"],
        addresses=kinds["address"],
        branches=kinds["branch"],
    )


def _unfused(instructions: Iterable[Instruction]) -> int:
    products: set[int] = set()  # registers that hold what an FMUL made
    pairs = 0
    for instruction in instructions:
        if instruction.word == "FADD" and not products.isdisjoint(instruction.read):
            pairs += 1
        products.difference_update(instruction.written)
        if instruction.word == "FMUL":
            products.update(instruction.written)
    return pairs


def load_distances(loop: Sequence[Instruction]) -> dict[int, int]:
    """Position of each load from shared memory in a loop to how many instructions later the first
    of what it loads is used; those of the next pass count on."""
    distances = {}
    twice = [*loop, *loop]
    for position, load in enumerate(loop):
        if load.kind != "shared load":
            continue
        loaded = set(load.written)
        for distance, instruction in enumerate(twice[position + 1 : position + len(loop)], 1):
            if not loaded.isdisjoint(instruction.read):
                distances[position] = distance
                break
    return distances


def dispatch_cycles(loop: Sequence[Instruction]) -> list[int]:
    """For each instruction of a loop the fewest cycles in which a scheduler gets it going: one, and
    those in which an FFMA waits for its operands.

    The model is that of Huerta et al. (arXiv 2503.20481): the registers lie in two banks, even and
    odd, that deliver one operand per cycle each; an instruction goes once its operands have places
    in three cycles. What is marked ``.reuse`` is kept for the next read at its place in the list of
    operands and in its bank, which then needs no delivery.
    """
    kept: dict[tuple[int, int], int] = {}
    taken = [0, 0]  # per bank, bit i: it delivers an operand i cycles from now
    cycles = []
    for instruction in [*loop, *loop]:  # the second pass finds the banks as every later one does
        needed: tuple[set[int], set[int]] = (set(), set())
        if instruction.word == "FFMA":
            for place, (register, reuse) in enumerate(instruction.registers[1:]):
                bank = register % 2
                if kept.get((place, bank)) != register:
                    needed[bank].add(register)
                kept[place, bank] = register if reuse else -1
        cycles.append(0)
        waiting = True
        while waiting:
            cycles[-1] += 1
            taken = [bits >> 1 for bits in taken]
            free = [[1 << i for i in range(_WINDOW) if not bits >> i & 1] for bits in taken]
            waiting = any(len(free[bank]) < len(needed[bank]) for bank in (0, 1))
        for bank in (0, 1):
            taken[bank] |= sum(free[bank][: len(needed[bank])])
    return cycles[len(loop) :]


def issue_gaps(loop: Sequence[Instruction]) -> list[int]:
    """For each instruction of a loop the fewest cycles from it to the warp's next one, the last's
    to the first of the next pass, where the warp has its scheduler to itself.

    They are the cycles for which the compiler stalls the warp, and the waits for what it cannot
    know: that a load from shared memory has arrived, that a memory access has read its registers.
    Other results that instructions wait for count as there at once.
    """
    ready = dict.fromkeys(range(6), 0)  # counter to when it is zero again
    issued = []
    cycle = 0
    for instruction in [*loop, *loop, *loop[:1]]:  # the second pass finds the counters of a first
        control = instruction.control
        cycle = max([cycle, *(ready[counter] for counter in control.waits)])
        issued.append(cycle)
        if control.result is not None and instruction.kind == "shared load":
            ready[control.result] = max(ready[control.result], cycle + SHARED_LOAD_CYCLES)
        if control.sources is not None:
            ready[control.sources] = max(ready[control.sources], cycle + SOURCES_CYCLES)
        cycle += control.stall
    return [after - before for before, after in pairwise(issued[len(loop) :])]


def pauses(loop: Sequence[Instruction]) -> list[tuple[int, int]]:
    """For each barrier of the block in a loop that multiplies, or several with no FFMA between
    them: how many instructions a warp has from its last FFMA before to its first one after, and in
    how many cycles, by ``issue_gaps``, it gets through them at best."""
    gaps = issue_gaps(loop)
    ffma = [position for position, instruction in enumerate(loop) if instruction.word == "FFMA"]
    found = []
    for last, first in pairwise([*ffma, *(position + len(loop) for position in ffma[:1])]):
        between = [position % len(loop) for position in range(last, first)]
        if any(loop[position].word == "BAR" for position in between):
            found.append((len(between) - 1, sum(gaps[position] for position in between)))
    return found
