"""The backends on which every kernel test runs."""

from __future__ import annotations

import pytest

from test.support.launch import Backend


@pytest.fixture(params=["cpu-shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request):
    return Backend(request.param)
