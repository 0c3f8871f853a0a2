"""Reading nvdisasm's output: instructions, and which of them are run again by a jump back."""

import pytest

from tests.machine_code.disassembly import Function, parse
from tests.machine_code.occupancy import MULTIPROCESSORS

HEADER = """
\t.target\tsm_90
//--------------------- .text.kernel --------------------------
\t.section\t.text.kernel,"ax",@progbits
.text.kernel:
        .type           kernel,@function
"""


def function(*lines: str) -> Function:
    """The function of lines, of which those that begin with a dot or a dollar are labels."""
    text = HEADER
    for number, line in enumerate(lines):
        is_label = line.startswith((".", "$"))
        text += f"{line}\n" if is_label else f"        /*{number * 16:04x}*/    {line} ;\n"
    (found,) = parse(text)
    return found


def opcodes(loop: list) -> list[str]:
    return [each.opcode for each in loop]


def test_instructions_are_read_whole() -> None:
    found = function(
        "LDC R1, c[0x0][0x28]",
        "@!P0 LDG.E R3, desc[UR6][R4.64]",
        "@UP0 UMOV UR4, 0x1",
        "EXIT",
        ".L_x_1:",
        "BRA `(.L_x_1)",
        "NOP",
        "NOP",
    )
    assert found.name == "kernel"
    assert opcodes([*found.instructions]) == ["LDC", "LDG.E", "UMOV", "EXIT"]
    assert [each.is_predicated for each in found.instructions] == [False, True, True, False]
    assert found.instructions[1].operands == "R3, desc[UR6][R4.64]"
    assert found.loops == []


def test_several_functions_of_a_file_stay_apart() -> None:
    first = HEADER + "        /*0000*/    EXIT ;\n"
    second = first.replace(".kernel", ".other").replace("EXIT", "RET.REL.NODEC R2")
    assert [each.name for each in parse(first + second)] == ["kernel", "other"]
    assert [len(each.instructions) for each in parse(first + second)] == [1, 1]


def test_the_smallest_loop_that_has_them_is_found() -> None:
    found = function(
        "MOV R1, RZ",
        ".L_x_1:",
        "LDGSTS.E.128 [R2], desc[UR6][R4.64]",
        ".L_x_2:",
        "HMMA.16816.F32 R8, R4, R6, R8",
        "@P0 BRA `(.L_x_2)",
        "@P1 BRA `(.L_x_1)",
        "EXIT",
    )
    assert sorted(map(len, found.loops)) == [2, 4]
    assert opcodes(found.loop_with(["HMMA"])) == ["HMMA.16816.F32", "BRA"]
    assert opcodes(found.loop_with(["HMMA"], ["LDG", "LDGSTS"])) == [
        *("LDGSTS.E.128", "HMMA.16816.F32", "BRA", "BRA"),
    ]
    with pytest.raises(LookupError):
        found.loop_with(["IMMA"])


def test_a_seldom_taken_branch_behind_the_end_is_part_of_the_loop() -> None:
    found = function(
        ".L_x_1:",
        "FADD R1, R1, R2",
        "@P0 BRA `(.L_x_3)",
        ".L_x_2:",
        "@P1 BRA `(.L_x_1)",
        "EXIT",
        ".L_x_3:",
        "MUFU.EX2 R1, R1",
        "BRA `(.L_x_2)",
    )
    assert [opcodes(each) for each in found.loops] == [["FADD", "BRA", "BRA", "MUFU.EX2", "BRA"]]


def test_a_jump_back_into_a_loop_from_outside_makes_none() -> None:
    found = function(
        "@P2 BRA `(.L_x_3)",
        ".L_x_1:",
        "FADD R1, R1, R2",
        "EXIT",
        ".L_x_3:",
        "FMUL R1, R1, R2",
        "BRA `(.L_x_1)",
    )
    assert found.loops == []


def test_lanes_go_on_together_where_their_barrier_was_set_up_to() -> None:
    found = function(
        ".L_x_1:",
        "BSSY B0, `(.L_x_3)",
        "@P0 BRA `(.L_x_2)",
        "FADD R1, R1, R2",
        ".L_x_2:",
        "BSYNC B0",
        "FMUL R1, R1, R3",  # never reached
        ".L_x_3:",
        "@P1 BRA `(.L_x_1)",
        "EXIT",
    )
    assert [opcodes(each) for each in found.loops] == [["BSSY", "BRA", "FADD", "BSYNC", "BRA"]]


def test_a_call_of_a_numbered_label_leaves_a_loop() -> None:
    found = function(
        ".L_x_1:",
        "CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div_s64)",
        "@P0 CALL.REL.NOINC `(.L_x_2)",
        "BRA `(.L_x_1)",
        ".L_x_2:",
        "FADD R1, R1, R2",
        "@P1 BRA `(.L_x_2)",
        "EXIT",
        "$__internal_0_$__cuda_sm20_div_s64:",
        "RET.REL.NODEC R2",
    )
    assert [opcodes(each) for each in found.loops] == [
        ["CALL.REL.NOINC", "CALL.REL.NOINC", "BRA"],
        ["FADD", "BRA"],
    ]


def test_the_way_of_lanes_that_are_apart_is_left_out() -> None:
    found = function(
        ".L_x_1:",
        "BRA.DIV UR4, `(.L_x_3)",
        "SHFL.BFLY PT, R1, R1, 0x4, 0x1f",
        ".L_x_2:",
        "@P1 BRA `(.L_x_1)",
        "EXIT",
        ".L_x_3:",
        "WARPSYNC.COLLECTIVE R9, `(.L_x_4)",
        ".L_x_4:",
        "SHFL.BFLY PT, R1, R1, 0x4, 0x1f",
        "BRA `(.L_x_2)",
    )
    assert [opcodes(each) for each in found.loops] == [["BRA.DIV", "SHFL.BFLY", "BRA"]]


@pytest.mark.parametrize(
    ("architecture", "threads", "registers", "shared_bytes", "blocks"),
    [
        (80, 128, 32, 0, 16),  # registers and threads
        (80, 128, 33, 0, 12),  # eight more registers than 32 are given
        (90, 128, 168, 115552, 2),  # shared memory
        (80, 128, 168, 115552, 1),
        (89, 128, 168, 115552, 0),  # more than a block may ask for
        (89, 128, 40, 0, 12),  # 1,536 threads
        (86, 32, 16, 0, 16),  # blocks, however small
        (90, 256, 254, 98304, 1),
        (90, 256, 255, 0, 1),
        (90, 512, 62, 26916, 2),
    ],
)
def test_blocks_of_a_multiprocessor(
    architecture: int, threads: int, registers: int, shared_bytes: int, blocks: int
) -> None:
    found = MULTIPROCESSORS[architecture].blocks_of(threads, registers, shared_bytes)
    assert found == blocks
