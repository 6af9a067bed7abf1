"""Two folders of kernels are told apart by their machine code, not by their text."""

from __future__ import annotations

import pytest

from test.kernels.same_code import compared

KERNEL = 'extern "C" __global__ void k(float* x) {\n    x[threadIdx.x] += ADDED;\n}\n'


@pytest.mark.parametrize(
    ("header", "kernel", "same"),
    [
        ("#define ADDED 1.f\n", KERNEL, []),  # nothing is another
        ("// A word more.\n#define ADDED 1.f\n", KERNEL.replace("\n", "\n\n", 1), [True]),
        ("#define ADDED 2.f\n", KERNEL, [False]),
    ],
)
def test_only_other_code_counts(tmp_path, header, kernel, same):
    texts = {"before": ("#define ADDED 1.f\n", KERNEL), "after": (header, kernel)}
    for folder, (added, text) in texts.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "added.cuh").write_text(added)
        (tmp_path / folder / "k.cu").write_text('#include "added.cuh"\n' + text)
    chosen = [("k", {"N": 1}, ("sm_80",)), ("new", {}, ("sm_80",))]  # one was not there before
    found = list(compared(tmp_path / "before", tmp_path / "after", chosen=chosen))
    assert found == [("k(N=1)", "sm_80", each) for each in same]
