"""What nvdisasm prints of a cubin: instructions of each kernel, and the loops among them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

_FUNCTION = re.compile(r"^\.text\.(\S+):$")
_LABEL = re.compile(r"^(\.L_x_\d+|\$\S+):$")
_INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?P<predicate>@!?U?P\w+ )?(?P<opcode>[A-Z][\w.]*)(?P<operands>.*?);"
)
_TARGET = re.compile(r"`\((\S+?)\)")
_BARRIER = re.compile(r"\bB\d+\b")
_UNCONDITIONAL = ("BRA", "BSYNC", "EXIT", "RET", "JMP")
# A call of a numbered label is a jump that does not come back; others are of subroutines.
_JUMPS = ("BRA", "JMP", "WARPSYNC", "CALL")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: `@P0 LDG.E R3, desc[UR6][R4.64]` has the opcode `LDG.E`."""

    opcode: str
    operands: str
    is_predicated: bool

    @property
    def name(self) -> str:
        """The opcode without its options."""
        return self.opcode.partition(".")[0]

    @property
    def target(self) -> str | None:
        """The label that it may go on at."""
        found = _TARGET.search(self.operands)
        return found[1] if found else None

    @property
    def is_conditional(self) -> bool:
        """Whether what stands behind a jump may follow it."""
        if self.is_predicated:
            return True
        # A jump with a condition among its operands: `BRA !P0, ...`, `BRA.DIV UR4, ...`.
        return self.name == "BRA" and not self.operands.startswith("`")


@dataclass(frozen=True)
class Function:
    """A kernel's instructions, without what fills it up behind its end."""

    name: str
    instructions: Sequence[Instruction]
    labels: dict[str, int]  # to indices of instructions

    @cached_property
    def loops(self) -> list[list[Instruction]]:
        """The instructions of each loop, those of loops inside it among them.

        A loop is what can be run again by a jump back to an instruction that all ways to the jump
        come by: also what stands outside of it in memory, such as branches that are seldom taken.
        The lanes of a warp are taken to be together: `BRA.DIV`, the way of those that are not, is
        never taken.
        """
        blocks = self._blocks()
        following = [self._following(begin, end) for begin, end in blocks]
        index_of = {begin: index for index, (begin, _) in enumerate(blocks)}
        edges = [[index_of[each] for each in each_of if each in index_of] for each_of in following]
        dominators = _dominators(edges)
        edges = [each if known else [] for each, known in zip(edges, dominators, strict=True)]
        heads: dict[int, set[int]] = {}
        for source, targets in enumerate(edges):
            for head in targets:
                if head in dominators[source]:
                    heads.setdefault(head, set()).add(source)
        return [
            [
                each
                for index in sorted(_body(edges, head, sources))
                for each in self.instructions[slice(*blocks[index])]
            ]
            for head, sources in sorted(heads.items())
        ]

    def loop_with(self, *alternatives: Sequence[str]) -> list[Instruction]:
        """Return the smallest loop that has an opcode of each of the alternatives.

        Raises:
            LookupError: there is none.
        """
        found = [
            loop
            for loop in (self.loops if self._has(self.instructions, alternatives) else [])
            if self._has(loop, alternatives)
        ]
        if not found:
            raise LookupError(f"{self.name}: no loop has {alternatives}")
        return min(found, key=len)

    @staticmethod
    def _has(instructions: Sequence[Instruction], alternatives: Sequence[Sequence[str]]) -> bool:
        names = {each.name for each in instructions}
        return all(not names.isdisjoint(each) for each in alternatives)

    def _blocks(self) -> list[tuple[int, int]]:
        """Runs of instructions that are entered at their first and left at their last."""
        begins = {0, *self.labels.values()}
        begins |= {
            index + 1
            for index, each in enumerate(self.instructions)
            if each.name in _UNCONDITIONAL or each.name in _JUMPS
        }
        bounds = sorted(each for each in begins if each < len(self.instructions))
        return list(zip(bounds, [*bounds[1:], len(self.instructions)], strict=True))

    def _following(self, begin: int, end: int) -> Iterator[int]:
        """Instructions that may follow a block."""
        last = self.instructions[end - 1]
        if last.name not in _UNCONDITIONAL or last.is_conditional:
            yield end
        if last.opcode == "BRA.DIV":
            return
        if last.name == "BSYNC":
            # It goes on where the barrier was set up to.
            barrier = _BARRIER.search(last.operands)
            assert barrier is not None
            for each in reversed(self.instructions[:end]):
                if each.name == "BSSY" and barrier[0] in each.operands:
                    yield self.labels[each.target or ""]
                    return
            yield end
        elif last.name in _JUMPS and last.target is not None and last.target.startswith("."):
            yield self.labels[last.target]


def parse(text: str) -> list[Function]:
    """Return the functions of nvdisasm's output (`nvdisasm -c`)."""
    functions: list[Function] = []
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if found := _FUNCTION.match(line):
            instructions, labels = [], {}
            functions.append(Function(found[1], instructions, labels))
        elif found := _LABEL.match(line):
            labels[found[1]] = len(instructions)
        elif found := _INSTRUCTION.match(line):
            instructions.append(
                Instruction(found["opcode"], found["operands"].strip(), bool(found["predicate"]))
            )
    for each in functions:
        _strip(each)
    return functions


def _strip(function: Function) -> None:
    """Remove what fills up the end: a jump to itself, and instructions that do nothing."""
    assert isinstance(function.instructions, list)
    while function.instructions and function.instructions[-1].name == "NOP":
        function.instructions.pop()
    if function.instructions and function.labels:
        last = function.instructions[-1]
        end = len(function.instructions) - 1
        if last.name == "BRA" and function.labels.get(last.target or "") == end:
            function.instructions.pop()


def _dominators(edges: Sequence[Sequence[int]]) -> list[set[int]]:
    """Of each block, those that all ways to it from the first come by; none if there is no way."""
    before: list[list[int]] = [[] for _ in edges]
    reached = {0}
    waiting = [0]
    while waiting:
        source = waiting.pop()
        for target in edges[source]:
            before[target].append(source)
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    order = sorted(reached)
    found: list[set[int]] = [
        set(order) if index in reached else set() for index in range(len(edges))
    ]
    found[0] = {0}
    changed = True
    while changed:
        changed = False
        for index in order[1:]:
            new = set.intersection(*(found[each] for each in before[index])) | {index}
            changed |= new != found[index]
            found[index] = new
    return found


def _body(edges: Sequence[Sequence[int]], head: int, sources: set[int]) -> set[int]:
    """The blocks from which a loop's jumps back are reached without its head."""
    body = {head}
    waiting = [*sources]
    while waiting:
        index = waiting.pop()
        if index not in body:
            body.add(index)
            waiting += [source for source, targets in enumerate(edges) if index in targets]
    return body
