"""What the processor has and is not used, and how fast each quantisation is."""

from pathlib import Path

import pytest

from worker_svc import processor


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu avx2 avx512f avx512_bf16", []),
        ("avx512_fp16 amx_tile amx_bf16 amx_int8", [*processor._UNUSED][:3]),
        ("", []),
    ],
)
def test_what_no_kernel_uses_is_named(flags: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    assert processor.unused_extensions(tmp_path / "cpuinfo") == expected
    assert processor.unused_extensions(tmp_path / "none") == []


def test_each_method_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_FEATURES", 256)
    monkeypatch.setattr(processor, "_OUT_FEATURES", 128)
    for factors in processor.linear_speeds().values():
        assert set(factors) == set(processor.METHODS)
        assert factors["none"] == 1.0
        assert all(factor > 0 for factor in factors.values())
