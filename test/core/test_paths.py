"""Files that travel with the package are found installed or not, or named where missing."""

from __future__ import annotations

import pytest

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.paths import share_path


def test_the_source_tree_is_found():
    assert (share_path("driveRT_ros") / "core").is_dir()


def test_the_environment_comes_first(tmp_path, monkeypatch):
    (tmp_path / "kernels").mkdir()
    monkeypatch.setenv("DRIVERT_SHARE", str(tmp_path))
    assert share_path("kernels") == tmp_path / "kernels"


def test_a_missing_file_says_where_it_was_looked_for():
    with pytest.raises(ConfigError, match=r"'no/such' .*looked in .*DRIVERT_SHARE"):
        share_path("no/such")
