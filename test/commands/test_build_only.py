"""``drivert run --build-only``: kernels are compiled for a GPU, here or elsewhere; then it ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from driveRT_ros.cli import main
from driveRT_ros.core import kernel_builds
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.kernel_builds import KernelBuild, pipeline_builds
from driveRT_ros.core.plan import default_plan


class Replaced(Exception):
    """Stands for a process that became another one."""


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line that the process became."""
    argv: list[str] = []

    def execve(path: str, command: list[str], env: dict[str, str]) -> None:
        argv.extend(command)
        raise Replaced

    monkeypatch.setattr(os, "execve", execve)
    return argv


@pytest.mark.nodes
@pytest.mark.parametrize("node", ["lidar_node", "camera_node"])
def test_without_a_value_the_node_itself_configures_and_ends(node: str, became: list[str]) -> None:
    with pytest.raises(Replaced):
        main(["run", "--build-only", *(["--camera"] if node == "camera_node" else [])])
    assert f"driveRT_ros.nodes.{node}" in became and "build_only:=true" in became


def test_with_a_capability_all_kernels_of_that_gpu_are_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = []

    def compile_cubin(stem: str, arch: str, defines: dict[str, Any]) -> None:
        assert arch == "sm_80"
        compiled.append(KernelBuild.of(stem, defines))

    monkeypatch.setattr(kernel_builds, "compile_cubin", compile_cubin)
    options = ["--set", "precision=fp16", "--set", "use_shipped_weights=false"]
    assert main(["run", "--build-only", "8.0", *options]) == 0
    config = LidarConfig(precision="fp16")
    plan = default_plan(config.model.channels, (8, 0), "fp16")
    assert sorted(compiled) == sorted(pipeline_builds(config, plan, (8, 0)))
    text = capsys.readouterr().out
    assert f"{len(compiled)} kernels for sm_80 in precision 'fp16'" in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["9"], "compute capability such as 9.0, got '9'"),
        (["9.0", "--camera"], "on the GPU it runs on"),
        (["9.0", "--topic", "/points"], "leave out --bag, --topic"),
        (["7.0", "--set", "precision=fp16"], "compute capability 7.0"),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_sentence(
    options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--build-only", *options]) == 2
    assert text in capsys.readouterr().err


def test_plan_of_another_gpu_is_compiled_in_the_precision_that_it_is_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = []
    monkeypatch.setattr(
        kernel_builds, "compile_cubin", lambda stem, arch, defines: compiled.append(stem)
    )
    path = tmp_path / "plan.json"
    default_plan(LidarConfig().model.channels, (9, 0), "fp32x3").save(path)
    command = ["run", "--build-only", "9.0", "--set", f"plan_path={path}"]
    assert main([*command, "--set", "precision=fp32x3"]) == 0
    assert "sparse_conv_mma" in compiled
    assert main(command) == 2
    assert "is for precision 'fp32x3', 'fp32' is asked for" in capsys.readouterr().err
