"""What the blocks of GGUF's IQ types stand for: entries of grids, which the package gguf holds.

Each reader takes blocks [n, bytes] uint8 and returns [n, elements] float32. Grids are data of
thousands of numbers, and are read from the package, quire-serve[gguf], where a file needs them.
"""

from functools import cache

import torch

from worker_svc.loading.gguf_integers import Bits, bits, half, nibbles, nibbles_in_turn

_DELTA = 0.125


@cache
def _grid(name: str) -> torch.Tensor:
    """Return the grid of a type: [entries, elements] float32."""
    from gguf import quants

    kind = getattr(quants, name)
    kind.init_grid()
    return torch.tensor(kind.grid, dtype=torch.float32).flatten(0, 2)


@cache
def _values() -> torch.Tensor:
    """Return the 16 values of IQ4: float32."""
    from gguf import quants

    return torch.tensor(quants.IQ4_NL.kvalues, dtype=torch.float32)


def _words(data: Bits, size: int) -> torch.Tensor:
    """Return the little-endian numbers of `size` bytes in rows of bytes: int64."""
    parts = data.reshape(len(data), -1, size).long()
    return (parts << 8 * torch.arange(size)).sum(-1)


def _fields(words: torch.Tensor, width: int, count: int) -> torch.Tensor:
    """Return the lowest `count` fields of `width` bits of each word [n, m]: [n, m * count]."""
    shifts = width * torch.arange(count)
    return (words.unsqueeze(-1) >> shifts & (1 << width) - 1).flatten(1)


def _signs(stored: Bits) -> torch.Tensor:
    """Return 1 or -1 by the bits of each byte [n, m]: [n, 8m] float32."""
    return 1 - 2 * bits(stored).float()


def _even_signs(sevens: torch.Tensor) -> torch.Tensor:
    """Return as _signs those of 7 bits each, the eighth of which makes their number even."""
    parity = sevens ^ sevens >> 4
    parity = parity ^ parity >> 2
    parity = (parity ^ parity >> 1) & 1
    return _signs((sevens | parity << 7).byte())


def _scaled(scales: torch.Tensor, entries: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """Return entries [n, m, w] by scales [n, s] of equal parts of a block, with signs [n, k]."""
    num_blocks, num_scales = scales.shape
    values = scales.unsqueeze(-1) * entries.view(num_blocks, num_scales, -1)
    return values.flatten(1) * signs


def iq2_xxs(blocks: Bits) -> torch.Tensor:
    """256 elements: a scale, 8 times 4 bytes of indices and 4 of signs and a scale."""
    parts = blocks[:, 2:].reshape(-1, 8, 8)
    words = _words(parts[:, :, 4:].flatten(1), 4)
    scales = half(blocks, 0) * (0.5 + (words >> 28).float()) * 0.25
    entries = _grid("IQ2_XXS")[parts[:, :, :4].flatten(1).long()]
    return _scaled(scales, entries, _even_signs(_fields(words, 7, 4)))


def iq2_xs(blocks: Bits) -> torch.Tensor:
    """256 elements: a scale, 32 indices of 9 bits with signs of 7, 16 scales of 4 bits."""
    words = _words(blocks[:, 2:66], 2)
    scales = half(blocks, 0) * (0.5 + nibbles_in_turn(blocks[:, 66:]).float()) * 0.25
    return _scaled(scales, _grid("IQ2_XS")[words & 511], _even_signs(words >> 9))


def iq2_s(blocks: Bits) -> torch.Tensor:
    """256 elements: a scale, 32 indices, signs, upper bits of indices, 16 scales of 4 bits."""
    indices = blocks[:, 2:34].long() | _fields(blocks[:, 66:74].long(), 2, 4) << 8
    scales = half(blocks, 0) * (0.5 + nibbles_in_turn(blocks[:, 74:]).float()) * 0.25
    return _scaled(scales, _grid("IQ2_S")[indices], _signs(blocks[:, 34:66]))


def iq3_xxs(blocks: Bits) -> torch.Tensor:
    """256 elements: a scale, 64 indices, 8 words of signs and a scale."""
    words = _words(blocks[:, 66:], 4)
    scales = half(blocks, 0) * (0.5 + (words >> 28).float()) * 0.5
    entries = _grid("IQ3_XXS")[blocks[:, 2:66].long()]
    return _scaled(scales, entries, _even_signs(_fields(words, 7, 4)))


def iq3_s(blocks: Bits) -> torch.Tensor:
    """256 elements: a scale, 64 indices, their ninth bits, signs, 8 scales of 4 bits."""
    indices = blocks[:, 2:66].long() | bits(blocks[:, 66:74]).long() << 8
    scales = half(blocks, 0) * (1 + 2 * nibbles_in_turn(blocks[:, 106:]).float())
    return _scaled(scales, _grid("IQ3_S")[indices], _signs(blocks[:, 74:106]))


def iq1_s(blocks: Bits) -> torch.Tensor:
    """256 elements: a scale, 32 indices, 8 words of upper bits, a scale and the sign of a shift."""
    words = _words(blocks[:, 34:], 2)
    indices = blocks[:, 2:34].long() | _fields(words, 3, 4) << 8
    scales = half(blocks, 0) * (2 * (words >> 12 & 7) + 1).float()
    shifts = (_DELTA - 2 * _DELTA * (words >> 15).float()).repeat_interleave(4, dim=1)
    return _shifted(scales, indices, shifts)


def iq1_m(blocks: Bits) -> torch.Tensor:
    """256 elements: 32 indices, their upper bits and signs of shifts, 16 scales of 3 bits."""
    words = _words(blocks[:, 48:], 2)
    # The float16 that scales them is in the upper four bits of the four words.
    number = ((words >> 12) << 4 * torch.arange(4)).sum(-1, keepdim=True)
    scale = number.to(torch.uint16).view(torch.float16).float()
    scales = scale * (2 * _fields(words, 3, 4) + 1).float()
    uppers = nibbles_in_turn(blocks[:, 32:48]).long()
    indices = blocks[:, :32].long() | (uppers & 7) << 8
    return _shifted(scales, indices, _DELTA - 2 * _DELTA * (uppers >> 3).float())


def _shifted(scales: torch.Tensor, indices: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
    """Return entries of IQ1's grid, shifted by numbers of their own, by scales of equal parts."""
    entries = (_grid("IQ1_S")[indices] + shifts.unsqueeze(-1)).view(*scales.shape, -1)
    return (scales.unsqueeze(-1) * entries).flatten(1)


def iq4_nl(blocks: Bits) -> torch.Tensor:
    """32 elements: a scale, nibbles that are indices of 16 values."""
    return half(blocks, 0) * _values()[nibbles(blocks[:, 2:]).long()]


def iq4_xs(blocks: Bits) -> torch.Tensor:
    """256 elements: a scale, 8 scales of 6 bits, nibbles that are indices of 16 values."""
    upper = _fields(_words(blocks[:, 2:4], 2), 2, 8)
    integers = (nibbles_in_turn(blocks[:, 4:8]).long() | upper << 4) - 32
    scales = half(blocks, 0) * integers.float()
    values = _values()[nibbles(blocks[:, 8:].reshape(-1, 8, 16)).long()]
    return (scales.unsqueeze(-1) * values).flatten(1)
