"""What the pages name exists: commands with their options, parameters, files that links lead to."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from driveRT_ros.cli import COMMANDS, build_parser
from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.train.camera_config import CameraTrainConfig
from driveRT_ros.train.config import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "kernels")),
]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
FENCE = re.compile(r"```\w*\n(.*?)```", re.DOTALL)


def typed(page: Path) -> list[str]:
    """Return the lines of all code blocks that start drivert, without comments."""
    lines = "\n".join(FENCE.findall(page.read_text(encoding="utf-8"))).splitlines()
    starts = ("drivert ", "torchrun ")
    commands = [line.split("#")[0].strip() for line in lines if line.startswith(starts)]
    return [re.sub(r"^torchrun .* -m driveRT_ros ", "drivert ", text) for text in commands]


def named(page: Path) -> list[str]:
    """Return what stands in code quotes in the running text."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [quoted.replace("\n", " ") for quoted in re.findall(r"`([^`]+)`", text)]


def options(parser: argparse.ArgumentParser) -> set[str]:
    """Return every option of a command and of its parts."""
    found: set[str] = set()
    for action in parser._actions:
        found.update(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            found.update(*(options(part) for part in action.choices.values()))
    return found


def test_the_pages_hold_commands() -> None:
    found = {command.split()[1] for page in PAGES for command in typed(page)}
    assert {"run", "tune", "qualify", "train", "eval", "ship", "bench"} <= found


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_in_code_blocks_are_taken_as_written(page: Path) -> None:
    parser = build_parser()
    for command in typed(page):
        words = shlex.split(command)[1:]
        if "--help" in words:
            continue
        try:
            parser.parse_args(words)
        except SystemExit:
            pytest.fail(f"'{command}' is not a command that drivert takes")


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_named_in_the_text_exist_with_their_options(page: Path) -> None:
    [commands] = [
        action.choices
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    anywhere = set().union(*map(options, commands.values()))
    for quoted in named(page):
        words = quoted.removeprefix("RUN ").replace("[", "").replace("]", "").split()
        if words[:1] == ["drivert"] and len(words) > 1:
            assert words[1] in COMMANDS, quoted
            given = {word for word in words if word.startswith("--")}
            assert given <= options(commands[words[1]]), quoted
        elif page.parent.name == "docs" and words and words[0].startswith("--"):
            assert words[0] in anywhere, quoted


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_parameters_that_the_pages_set_exist(page: Path) -> None:
    configs = (LidarConfig, CameraConfig, TrainConfig, CameraTrainConfig)
    known = {parameter.name for config in configs for parameter in config.parameters()}
    groups = {name.split(".")[0] for name in known if "." in name}
    text = page.read_text(encoding="utf-8")
    for name in [quoted.split(":")[0] for quoted in named(page)]:
        if re.fullmatch(r"[a-z_]+\.[a-z_.]+", name) and name.split(".")[0] in groups:
            assert name in known, name
    for name in re.findall(r"--set ([\w.]+)=", text):
        assert name in known, name


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_and_named_files_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in link or (page.parent / link).exists(), link
    for path in re.findall(r"`((?:config|benchmarks|driveRT_ros|core|docs|launch)/[\w./]+)`", text):
        assert (ROOT / path).exists() or (ROOT / "driveRT_ros" / path).exists(), path


def test_the_table_of_kernels_names_every_source_once_and_a_reference_that_exists() -> None:
    text = (ROOT / "kernels" / "README.md").read_text(encoding="utf-8")
    table = text.partition("| file | computes | reference |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    named_files = [name for files, *_ in rows for name in re.findall(r"`([^`]+)`", files)]
    sources = {path.name for path in (ROOT / "kernels").glob("*.cu*")}
    # What all kernels share; it computes nothing by itself.
    assert sorted(named_files) == sorted(sources - {"common.cuh"})
    for files, _, references in rows:
        for path in re.findall(r"`([^`]+\.py)`", references):
            assert (ROOT / "driveRT_ros" / path).is_file(), f"{files}: {path}"
        assert references or ".cu`" not in files, f"{files} has no reference"
