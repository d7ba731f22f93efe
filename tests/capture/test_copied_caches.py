"""Compile caches that were kept, in the copy that a visit gets."""

from __future__ import annotations

import ast
import json
import os
import pprint
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import Compiling, measure

from perfgate.capture import compile_caches
from perfgate.capture.compile_caches import point_home
from perfgate.capture.job import Job
from perfgate.machine.sealed_folders import Seal, Store
from perfgate.scenario.subject import Subject

HANDLES = "vllm/torch_compile_cache/0a1b2c/rank_0_0/backbone/vllm_compile_cache.py"


def copied(folder: Path) -> tuple[Path, Seal]:
    """A copy, with a shorter path, of what is kept of the folder ``the-one``, and its seal."""
    store = Store(folder / "kept")
    assert store.keep("a" * 64, folder / "the-one", "somebody")
    seal = store.take("a" * 64, folder / "two")
    assert seal is not None
    return folder / "two", seal


def moved(folder: Path, content: bytes) -> bytes:
    """What is in a file of a copy whose original held that, with ``ONE`` and ``TWO`` for both folders."""
    file = folder / "the-one" / "below" / "file"
    file.parent.mkdir(parents=True)
    file.write_bytes(content.replace(b"ONE", os.fsencode(folder / "the-one")))
    os.utime(file, ns=(1, 2))
    copy, seal = copied(folder)
    point_home(copy, seal)
    assert (copy / "below" / "file").stat().st_mtime_ns == 2
    now = (copy / "below" / "file").read_bytes()
    return now.replace(os.fsencode(copy), b"TWO").replace(os.fsencode(folder / "the-one"), b"ONE")


@pytest.mark.usefixtures("cache_store")
def test_kernels_of_triton_are_found_where_they_are_copied_to(
    tmp_path: Path, build_named: Callable[[str], Subject]
) -> None:
    """Each engine of a later visit reads absolute paths of its own side's folder, and of no other."""
    read: list[tuple[Path, Path]] = []

    def compile_kernel(job: Job) -> None:
        kernel = job.cache_folder / "triton" / "ABC" / "add.cubin"
        group = kernel.with_name("__grp__add.json")
        if not group.exists():
            kernel.parent.mkdir(parents=True)
            kernel.touch()
            group.write_text(json.dumps({"child_paths": {kernel.name: str(kernel)}}))
        read.append((kernel, Path(json.loads(group.read_text())["child_paths"][kernel.name])))

    base = build_named("base")
    for folder in ("one", "two"):
        measure(tmp_path / folder, Compiling(compile_kernel), base)
    assert len({kernel for kernel, _ in read}) == 4
    assert all(kernel == named for kernel, named in read)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"lib = 'ONE/a'\r\nof ONE", b"lib = 'TWO/a'\r\nof TWO"),
        (b"ONE-more/a ONE.txt ONE", b"ONE-more/a ONE.txt TWO"),
        (b"/other \xc3\xa9 ONE", b"/other \xc3\xa9 TWO"),
    ],
    ids=["named", "longer names", "letters"],
)
def test_text_files_of_a_copy_name_the_copy(tmp_path: Path, content: bytes, expected: bytes) -> None:
    """Each place that names the folder which was kept names the copy; other names stay, and so does the file's time."""
    assert moved(tmp_path, content) == expected


@pytest.mark.parametrize("content", [b"ONE \0", b"ONE \xff", b"\x80\x04 ONE"], ids=["zero", "no UTF-8", "pickle"])
def test_binary_files_of_a_copy_stay(tmp_path: Path, content: bytes) -> None:
    """A path of another length in a program or a pickle would break it."""
    assert moved(tmp_path, content) == content


def test_large_files_of_a_copy_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code under test may leave files of any size, which are not read into memory."""
    monkeypatch.setattr(compile_caches, "_MOST_TEXT", 1000)
    assert moved(tmp_path, b"ONE" + b" " * 1000) == b"ONE" + b" " * 1000


def test_a_link_in_a_copy_is_not_followed(tmp_path: Path) -> None:
    """What code under test put in the place of a file leads nowhere else."""
    (tmp_path / "the-one").mkdir()
    (tmp_path / "the-one" / "file").write_text(str(tmp_path / "the-one"))
    copy, seal = copied(tmp_path)
    (tmp_path / "outside").write_text(str(tmp_path / "the-one"))
    (copy / "file").unlink()
    (copy / "file").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic links"):
        point_home(copy, seal)
    assert (tmp_path / "outside").read_text() == str(tmp_path / "the-one")


def test_handles_of_vllm_name_files_of_the_copy(tmp_path: Path) -> None:
    """What vLLM 0.25.1 keeps of compiled graphs is a Python literal of many lines, and is read as one again."""
    file = tmp_path / "the-one" / HANDLES
    keys = [f"artifact_compile_range_1_4096_subgraph_{number}" for number in range(3)]
    handles = {
        ((1, 4096), key, "inductor_standalone"): {"graph_handle": (key, str(file.with_name(key)))} for key in keys
    }
    file.parent.mkdir(parents=True)
    file.write_text(pprint.PrettyPrinter(indent=4).pformat(handles))
    copy, seal = copied(tmp_path)
    point_home(copy, seal)
    named = [value["graph_handle"] for value in ast.literal_eval((copy / HANDLES).read_text()).values()]
    assert named == [(key, str((copy / HANDLES).with_name(key))) for key in keys]


@pytest.mark.usefixtures("cache_store")
@pytest.mark.parametrize("name", ["my run", "it's", "caf\udce9", "é"])
def test_nothing_is_kept_below_a_path_of_many_spellings(
    tmp_path: Path, build_named: Callable[[str], Subject], name: str
) -> None:
    """It could not be found in what programs write; that is said, and the trials are measured."""
    (tmp_path / name).mkdir()
    for number in ("one", "two"):
        record, (said,) = measure(tmp_path / name / number, collector := Compiling(), build_named(number))
        assert said.startswith("compile caches are not kept: ")
        assert said.isascii()
        assert collector.first("base") == ""
        assert len(record.pairs()) == 2


@pytest.mark.slow
@pytest.mark.engine(starts=1)
def test_triton_itself_finds_a_kernel_in_a_copy(tmp_path: Path, engine_python: str) -> None:
    """The engine's own Triton, which finds nothing in a folder that was moved, does after its paths were moved."""
    program = """
import sys
from triton.runtime.cache import FileCacheManager
cache = FileCacheManager("abc")
if sys.argv[1:]:
    cache.put_group("add.json", {"add.cubin": cache.put(b"code", "add.cubin")})
print(cache.get_group("add.json"))
"""

    def told(folder: Path, *words: str) -> str:
        environment = {**os.environ, "TRITON_CACHE_DIR": str(folder)}
        command = [engine_python, "-c", program, *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    (tmp_path / "the-one").mkdir()
    assert str(tmp_path / "the-one") in told(tmp_path / "the-one", "write")
    copy, seal = copied(tmp_path)
    shutil.rmtree(tmp_path / "the-one")
    assert told(copy) == "None\n"
    point_home(copy, seal)
    assert str(tmp_path / "two") in told(tmp_path / "two")
