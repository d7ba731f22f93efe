"""Sealed folders: what is taken is what was kept, and whatever else is there is made anew."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deep_tree import deep_tree

from perfgate.machine import sealed_folders
from perfgate.machine.cleanup import remove_tree
from perfgate.machine.locks import hold_named
from perfgate.machine.sealed_folders import SEAL, Seal, Store, UnfitError

KEY = "a" * 64


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty one."""
    return Store(tmp_path / "store")


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """What a compiler may leave: a program, a table, and a folder in a folder."""
    folder = tmp_path / "filled"
    (folder / "triton" / "deep").mkdir(parents=True)
    (folder / "triton" / "deep" / "kernel.so").write_bytes(b"\0code")
    (folder / "triton" / "run").write_text("#!/bin/sh\n")
    (folder / "triton" / "run").chmod(0o755)
    os.utime(folder / "triton" / "run", ns=(5, 1_000_000_007))
    return folder


def keep(store: Store, folder: Path, key: str = KEY, grown_from: Seal | None = None, by: str = "batch 1") -> Seal:
    """The seal of what had to be kept."""
    seal = store.keep(key, folder, by, grown_from)
    assert seal is not None
    return seal


def test_a_copy_is_what_was_kept(store: Store, filled: Path, tmp_path: Path) -> None:
    """Content, time and executability come back; what is written into the copy later is not in the next one."""
    kept = keep(store, filled)
    assert store.take(KEY, tmp_path / "one") == kept
    run = tmp_path / "one" / "triton" / "run"
    assert (run.read_text(), run.stat().st_mtime_ns, run.stat().st_mode & 0o777) == (
        "#!/bin/sh\n",
        1_000_000_007,
        0o700,
    )
    (tmp_path / "one" / "triton" / "deep" / "kernel.so").write_bytes(b"\0other")

    store.take(KEY, tmp_path / "two")
    assert (tmp_path / "two" / "triton" / "deep" / "kernel.so").read_bytes() == b"\0code"
    assert store.take("b" * 64, tmp_path / "three") is None


def _changed(entry: Path) -> None:
    file = entry / "files" / "triton" / "deep" / "kernel.so"
    file.chmod(0o600)
    file.write_bytes(b"\0evil")


def _other_seal(entry: Path) -> None:
    seal = json.loads((entry / "seal.json").read_text())
    (entry / "seal.json").write_text(json.dumps({**seal, "key": "b" * 64}))


TAMPERED: dict[str, Callable[[Path], object]] = {
    "a file changed": _changed,
    "a file more": lambda entry: (entry / "files" / "more.so").write_bytes(b"x"),
    "a file less": lambda entry: (entry / "files" / "triton" / "run").unlink(),
    "a link to a file": lambda entry: (entry / "files" / "more.so").symlink_to("/etc/hostname"),
    "a link to a folder": lambda entry: (entry / "files" / "more").symlink_to("/etc"),
    "a pipe": lambda entry: os.mkfifo(entry / "files" / "pipe"),
    "a second name": lambda entry: os.link(entry / "files" / "triton" / "run", entry.parent / "second-name"),
    "a file that others can write": lambda entry: (entry / "files" / "triton" / "run").chmod(0o666),
    "a folder that others can write": lambda entry: (entry / "files").chmod(0o777),
    "something beside the files": lambda entry: (entry / "more").write_text(""),
    "no seal": lambda entry: (entry / "seal.json").unlink(),
    "half a seal": lambda entry: (entry / "seal.json").write_text("{"),
    "the seal of another": _other_seal,
}


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED)
def test_what_is_not_what_was_kept_is_removed(
    store: Store, filled: Path, tmp_path: Path, tamper: Callable[[Path], object]
) -> None:
    """Nothing of it is given out, and the next fill takes its place."""
    keep(store, filled)
    tamper(store.root / KEY)

    with pytest.raises(UnfitError):
        store.take(KEY, tmp_path / "one")
    assert not (tmp_path / "one").exists()
    assert not (store.root / KEY).exists()
    keep(store, filled)
    assert store.take(KEY, tmp_path / "two") is not None


def test_an_entry_that_is_a_link(store: Store, filled: Path, tmp_path: Path) -> None:
    """The link goes; what it names stays."""
    keep(store, filled)
    (store.root / KEY).rename(tmp_path / "elsewhere")
    (store.root / KEY).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UnfitError, match="a link"):
        store.take(KEY, tmp_path / "one")
    assert not (store.root / KEY).is_symlink()
    assert (tmp_path / "elsewhere" / "seal.json").exists()


def test_files_of_another_user(store: Store, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever made them, they were not made here."""
    keep(store, filled)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UnfitError, match="another user"):
        store.take(KEY, tmp_path / "one")
    with pytest.raises(UnfitError, match="another user"):
        Store(store.root)


def test_a_store_that_others_can_write(tmp_path: Path) -> None:
    """It is not used."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o777)
    with pytest.raises(UnfitError, match="others can write"):
        Store(tmp_path / "store")


def test_links_are_not_kept(store: Store, filled: Path) -> None:
    """A folder that names files elsewhere would be another folder the next time; nothing of it is left."""
    (filled / "secret").symlink_to("/etc/hostname")
    with pytest.raises(UnfitError, match="a link"):
        store.keep(KEY, filled, "batch 1")
    assert [item.name for item in store.root.iterdir()] == ["locks"]


def test_what_is_nested_too_deep_is_not_kept(store: Store, filled: Path) -> None:
    """Nor is anything left of it."""
    with deep_tree(filled):
        with pytest.raises(UnfitError, match="64 folders deep"):
            store.keep(KEY, filled, "batch 1")
        assert [item.name for item in store.root.iterdir()] == ["locks"]
        remove_tree(filled)
        assert not filled.exists()


def test_what_is_too_large_is_not_copied(store: Store, filled: Path) -> None:
    """A file that only says it is large takes no room on the disk, and its copy would."""
    with (filled / "sparse").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(UnfitError, match="4 GiB"):
        store.keep(KEY, filled, "batch 1")
    assert [item.name for item in store.root.iterdir()] == ["locks"]


def test_half_a_copy_is_none(store: Store, filled: Path, tmp_path: Path) -> None:
    """Where the disk is full nothing is left of the copy, and the entry stays."""
    keep(store, filled)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))  # the kernel ignores it for what Python ignores: SIGXFSZ
    try:
        with pytest.raises(OSError, match="File too large"):
            store.take(KEY, tmp_path / "one")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "one").exists()
    assert store.take(KEY, tmp_path / "one") is not None


def test_the_first_stays_unless_it_grew(store: Store, filled: Path, tmp_path: Path) -> None:
    """Another fill replaces nothing, nor does what grew beside another growth; who filled it first keeps its draw."""
    first = keep(store, filled)
    (filled / "more").write_text("later")
    assert store.keep(KEY, filled, "batch 1") is None

    grown = keep(store, filled, grown_from=first, by="batch 2")
    assert set(grown.files) - set(first.files) == {"more"}
    assert grown.filled_utc == first.filled_utc
    assert grown.draws == {**first.draws, "batch 2": grown.draws["batch 2"]}
    assert len({*grown.draws.values()}) == 2
    assert store.keep(KEY, filled, "batch 3", first) is None
    assert store.take(KEY, tmp_path / "one") == grown
    assert keep(store, filled, grown_from=grown, by="batch 1").draws == grown.draws


def test_old_content_is_made_anew(store: Store, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw serves for two weeks, however often it is used."""
    keep(store, filled)
    monkeypatch.setattr(sealed_folders, "MOST_AGE", timedelta(seconds=-1))
    assert store.take(KEY, tmp_path / "one") is None
    assert not (store.root / KEY).exists()


def test_what_was_used_longest_ago_goes_first(
    store: Store, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit one entry goes, and not the one that was kept first but used since."""
    size = keep(store, filled, "1" * 64).size
    keep(store, filled, "2" * 64)
    for number, seconds in (("1", 1000), ("2", 2000)):
        os.utime(store.root / (number * 64) / "seal.json", (seconds, seconds))
    assert store.take("1" * 64, tmp_path / "one") is not None
    monkeypatch.setattr(sealed_folders, "MOST_BYTES", 2 * size)

    keep(store, filled, "3" * 64)
    assert {item.name[0] for item in store.root.iterdir()} == {"1", "3", "l"}


def test_room_is_made_of_what_serves_nobody(store: Store, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is older than two weeks goes when something is kept, and what is half written or of another version."""
    keep(store, filled, "1" * 64)
    monkeypatch.setattr(sealed_folders, "MOST_AGE", timedelta(seconds=-1))
    (store.root / f"{'2' * 64}.part").mkdir()
    (store.root / ("4" * 64)).mkdir()
    (store.root / ("4" * 64) / SEAL).write_text('{"format": "perfgate-sealed/2"}')
    keep(store, filled, "3" * 64)
    assert {item.name[0] for item in store.root.iterdir()} == {"3", "l"}


def test_what_others_put_there_stays(tmp_path: Path, filled: Path) -> None:
    """A store in a folder that holds other things, as somebody's home does, removes none of them."""
    (tmp_path / "home" / "pictures").mkdir(parents=True, mode=0o700)
    (tmp_path / "home").chmod(0o700)
    (tmp_path / "home" / "letter").write_text("")
    store = Store(tmp_path / "home")
    keep(store, filled)
    assert [item.folder.name for item in store.sweep(-1)] == [KEY]
    assert {item.name for item in store.root.iterdir()} == {"letter", "pictures", "locks"}


def test_sweeping(store: Store, filled: Path) -> None:
    """What was not used for so long goes, and what is broken or half; the rest stays, and so does what is in use."""
    for key in "1234":
        keep(store, filled, key * 64)
    long_ago = (datetime.now(UTC) - timedelta(days=9)).timestamp()
    for key in "14":
        os.utime(store.root / (key * 64) / "seal.json", (long_ago, long_ago))
    _changed(store.root / ("2" * 64))
    (store.root / ("2" * 64) / "seal.json").write_text("{")
    (store.root / f"{'5' * 64}.part").mkdir()

    with hold_named(store.root / "locks", "4" * 64, "testing", lambda _: None, 0.0):
        swept = list(store.sweep(7))
    assert {(item.folder.name[0], bool(item.kept)) for item in swept} == {
        ("1", False), ("2", False), ("4", True), ("5", False),
    }  # fmt: skip
    assert {item.name[0] for item in store.root.iterdir()} == {"3", "4", "l"}


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED)
def test_sweeping_reads_what_it_leaves(store: Store, filled: Path, tamper: Callable[[Path], object]) -> None:
    """What is not what was kept goes, however young, and though its seal is whole."""
    for key in (KEY, "b" * 64):
        keep(store, filled, key)
    tamper(store.root / KEY)
    assert [str(item) for item in store.sweep(7)] == [f"removed {store.root / KEY}"]
    assert (store.root / ("b" * 64) / "files" / "triton" / "run").exists()


def test_an_entry_in_use_is_done_without(
    store: Store, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever copies holds the entry; another process that waited for long enough says whose it is."""
    keep(store, filled)
    monkeypatch.setattr(sealed_folders, "LOCK_S", 0.0)
    with (
        hold_named(store.root / "locks", KEY, "testing", lambda _: None, 0.0),
        pytest.raises(UnfitError, match="in use"),
    ):
        Store(store.root).take(KEY, tmp_path / "one")
    assert (store.root / KEY).exists()
