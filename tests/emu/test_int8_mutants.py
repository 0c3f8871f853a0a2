"""Bugs planted in the kernels of int8 layers: the emulator must notice each of them."""

from tests.emu.planted_bugs import PlantedBugs

KERNEL = ("linear/int8_tile.cuh",)

# What is wrong: the text of the kernel that is replaced, and by what.
MUTANTS = {
    "denormals rounded": ("rintf(flush(x[i + j]) * inverse)", "rintf(x[i + j] * inverse)"),
    "integers cut off": ("rintf(flush(x[i + j]) * inverse)", "flush(x[i + j]) * inverse"),
    "a lane's largest for the row's": (
        "flipped = kWarpSize / 2; flipped > 0",
        "flipped = kWarpSize / 4; flipped > 0",
    ),
    "the first part's scale for all": ("rows.scales[index] = scale", "rows.scales[0] = scale"),
    "what is beyond a part is quantised": (
        "load_pack(part, k, length, x);",
        "load_pack(part, k, length + 4, x);",
    ),
    "fours in order": ("fours[at / 16 * 16 + at % 4 * 4 + at % 16 / 4]", "fours[at]"),
    "no zeros behind a part": (
        "k < rows.blocks * kInt8Block; k",
        "k < length; k",
    ),
    "weights with 128 more": ("kSigns = 0x80808080u", "kSigns = 0"),
    "halves change places": ("{low.x ^ kSigns, low.y", "{low.y ^ kSigns, low.x"),
    "the same rows twice": ("half == 0 ? b[r].y : b[r].w", "b[r].y"),
    "fours of the next feature": ("line * kInt8Line +", "line * kInt8Line + 4 +"),
    "panels in one place": ("panel + which * panel_bytes", "panel"),
    "warps that skip the last block": (
        "rows.blocks * (warp % warps + 1) / warps, sums",
        "rows.blocks * (warp % warps + 1) / warps - 1, sums",
    ),
    "rows that do not exist": ("if (row >= p.num_rows) break;", ""),
    "another row's scale": (
        "Shape::row_of(j, lane), p.num_rows",
        "Shape::row_of(0, lane), p.num_rows",
    ),
    "another feature's scale": ("scales[feature % kPanelFeatures]", "scales[feature % 16]"),
    "parts added before they are scaled": ("distance < warps; distance", "distance < 8; distance"),
    "no barrier before the neighbours' sums": (
        "  __syncthreads();\n  if (warp % (2 * distance) == 0) {",
        "  if (warp % (2 * distance) == 0) {",
    ),
    "no barrier after the neighbours' sums": (
        "__syncthreads();  // what lies there has been read",
        "",
    ),
    "a barrier that half of the block skips": (
        "__syncthreads();  // what lies there has been read",
        "if (warp < 4) __syncthreads();",
    ),
    "no barrier before the result takes the sums' place": (
        "__syncthreads();  // the last sums have been read",
        "",
    ),
    "no bias": ("flush(values[j] + flush(p.bias[feature]))", "values[j]"),
}


class TestInt8Layers(PlantedBugs):
    driver = "int8_driver.cpp"
    kernel = KERNEL
    mutants = MUTANTS
