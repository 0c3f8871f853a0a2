"""What the blocks of GGUF's integer types stand for, from the bytes of a block alone.

Each reader takes blocks [n, bytes] uint8 and returns [n, elements] float32.
"""

import torch

Bits = torch.Tensor
_BITS = torch.arange(8, dtype=torch.uint8)
_PAIRS = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(4, 1)
_POWERS_OF_3 = torch.tensor([1, 3, 9, 27, 81], dtype=torch.uint8).view(5, 1)
# Twice the values of float4 (e2m1): scales have the other half.
_FLOAT4 = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]).float()


def half(blocks: Bits, at: int) -> torch.Tensor:
    """Return [n, 1] float32 of the float16 at a byte of each block."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def nibbles(data: Bits) -> Bits:
    """Return the lower four bits of all bytes [..., m], then the upper ones: [..., 2m]."""
    return torch.cat((data & 15, data >> 4), dim=-1)


def nibbles_in_turn(data: Bits) -> Bits:
    """Return the lower and the upper four bits of each byte [n, m] in turn: [n, 2m]."""
    return torch.stack((data & 15, data >> 4), dim=-1).flatten(1)


def bits(data: Bits) -> Bits:
    """Return the bits of each byte [n, m] in turn, the lowest first: [n, 8m]."""
    return (data.unsqueeze(-1) >> _BITS & 1).flatten(1)


def _pairs(data: Bits) -> Bits:
    """Return pairs of bits of bytes [n, r, m], the lowest of all first: [n, r, 4, m]."""
    return data.unsqueeze(-2) >> _PAIRS & 3


def q4_0(blocks: Bits) -> torch.Tensor:
    """32 elements: scale, nibbles around 8."""
    return half(blocks, 0) * (nibbles(blocks[:, 2:]).float() - 8)


def q4_1(blocks: Bits) -> torch.Tensor:
    """32 elements: scale, minimum, nibbles."""
    return half(blocks, 0) * nibbles(blocks[:, 4:]).float() + half(blocks, 2)


def q5_0(blocks: Bits) -> torch.Tensor:
    """32 elements: scale, fifth bits, nibbles; around 16."""
    integers = nibbles(blocks[:, 6:]) | bits(blocks[:, 2:6]) << 4
    return half(blocks, 0) * (integers.float() - 16)


def q5_1(blocks: Bits) -> torch.Tensor:
    """32 elements: scale, minimum, fifth bits, nibbles."""
    integers = nibbles(blocks[:, 8:]) | bits(blocks[:, 4:8]) << 4
    return half(blocks, 0) * integers.float() + half(blocks, 2)


def q8_0(blocks: Bits) -> torch.Tensor:
    """32 elements: scale, signed bytes."""
    return half(blocks, 0) * blocks[:, 2:].view(torch.int8).float()


def q2_k(blocks: Bits) -> torch.Tensor:
    """256 elements: 16 scales and minima of 4 bits, pairs of bits, scales of both."""
    scales = half(blocks, 80) * (blocks[:, :16] & 15).float()
    minima = half(blocks, 82) * (blocks[:, :16] >> 4).float()
    integers = _pairs(blocks[:, 16:80].reshape(-1, 2, 32)).view(-1, 16, 16).float()
    return (integers * scales.unsqueeze(-1) - minima.unsqueeze(-1)).flatten(1)


def q3_k(blocks: Bits) -> torch.Tensor:
    """256 elements: third bits, pairs of bits, 16 scales of 6 bits, their scale."""
    upper = (blocks[:, 104:108].unsqueeze(1) >> _PAIRS & 3).flatten(1)
    scales = (nibbles(blocks[:, 96:104]) | upper << 4).float() - 32
    lower = _pairs(blocks[:, 32:96].reshape(-1, 2, 32)).view(-1, 16, 16)
    third = (blocks[:, :32].unsqueeze(1) >> _BITS.view(8, 1) & 1).view(-1, 16, 16)
    integers = (lower | third << 2).float() - 4
    return (integers * (half(blocks, 108) * scales).unsqueeze(-1)).flatten(1)


def _scaled_k(blocks: Bits, integers: torch.Tensor) -> torch.Tensor:
    """Return integers [n, 8, 32] by eight scales, less eight minima, of 6 bits each."""
    low, middle, high = blocks[:, 4:16].view(-1, 3, 4).unbind(1)
    # Four groups in place, four with their upper bits elsewhere.
    scales = torch.cat((low & 63, (high & 15) | (low >> 6 << 4)), dim=1)
    minima = torch.cat((middle & 63, (high >> 4) | (middle >> 6 << 4)), dim=1)
    scaled = integers.float() * (half(blocks, 0) * scales.float()).unsqueeze(-1)
    return (scaled - (half(blocks, 2) * minima.float()).unsqueeze(-1)).flatten(1)


def q4_k(blocks: Bits) -> torch.Tensor:
    """256 elements: two scales, 8 scales and minima of 6 bits, nibbles."""
    return _scaled_k(blocks, nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32))


def q5_k(blocks: Bits) -> torch.Tensor:
    """256 elements: as q4_k, with fifth bits before the nibbles."""
    lower = nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32)
    fifth = blocks[:, 16:48].unsqueeze(1) >> _BITS.view(8, 1) & 1
    return _scaled_k(blocks, lower | fifth << 4)


def q6_k(blocks: Bits) -> torch.Tensor:
    """256 elements: nibbles, pairs of bits above them, 16 signed scales, their scale."""
    lower = nibbles(blocks[:, :128].reshape(-1, 2, 64)).view(-1, 2, 4, 32)
    integers = lower | _pairs(blocks[:, 128:192].reshape(-1, 2, 32)) << 4
    scales = half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    return ((integers.view(-1, 16, 16).float() - 32) * scales.unsqueeze(-1)).flatten(1)


def tq1_0(blocks: Bits) -> torch.Tensor:
    """256 elements of -1, 0 and 1: five of them in a byte, as digits to the base 3; a scale."""
    rows = [(0, 32, 5), (32, 48, 5), (48, 52, 4)]
    # The product loses the digits before the one that is wanted.
    digits = [
        (blocks[:, None, begin:end] * _POWERS_OF_3[:count]).flatten(1) for begin, end, count in rows
    ]
    integers = (torch.cat(digits, dim=1).int() * 3 >> 8) - 1
    return half(blocks, 52) * integers.float()


def tq2_0(blocks: Bits) -> torch.Tensor:
    """256 elements of -1 to 2: pairs of bits; a scale."""
    integers = _pairs(blocks[:, :64].reshape(-1, 2, 32)).flatten(1)
    return half(blocks, 64) * (integers.float() - 1)


def mxfp4(blocks: Bits) -> torch.Tensor:
    """32 elements of float4: a power of two, nibbles."""
    exponents = blocks[:, :1].int()
    # Half of 2^(e - 127), whose two smallest values have no exponent of their own.
    scales = torch.where(exponents < 2, 0x200000 << exponents.clamp(max=1), (exponents - 1) << 23)
    return scales.view(torch.float32) * _FLOAT4[nibbles(blocks[:, 1:]).int()]


def nvfp4(blocks: Bits) -> torch.Tensor:
    """64 elements of float4: four scales of float8 (e4m3) without signs, nibbles of 16 each."""
    stored = blocks[:, :4].int()
    mantissas, exponents = (stored & 7).float(), stored >> 3 & 15
    numbers = torch.ldexp(1 + mantissas / 8, exponents - 7)
    scales = torch.where(exponents == 0, mantissas * 2**-9, numbers) * 0.5
    scales = torch.where(stored == 127, 0.0, scales)
    integers = nibbles(blocks[:, 4:].reshape(-1, 4, 8)).int()
    return (scales.unsqueeze(-1) * _FLOAT4[integers]).flatten(1)
