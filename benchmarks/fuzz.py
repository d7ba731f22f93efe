"""Fuzz every reader of what comes from outside, guided by the code of perfgate that an input reaches (atheris).

``python benchmarks/fuzz.py [READER ...] [--seconds 10] [--broken FOLDER] [--keep FOLDER]``, with the group ``fuzz``.

The readers are those of ``tests/readers.py``; each begins with its whole input and with what ``tests/corpus`` keeps.
Only an error of perfgate's own may leave a reader, within :data:`TIMEOUT_S` seconds and :data:`MEMORY_MIB` MiB. Prints
a Markdown table, and ends with 1 where a reader broke. The input that broke it is then in the folder of ``--broken``:
copy it to ``tests/corpus/READER/``, where ``tests/house/test_corpus.py`` tries it with each change, and correct the
cause.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
import re
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

try:
    import atheris
except ImportError as missing:
    if sys.version_info < (3, 14) and (sys.platform, platform.machine()) == ("linux", "x86_64"):
        sys.exit(f"{missing}: install it with pip install --group fuzz")
    version = ".".join(map(str, sys.version_info[:2]))
    print(f"no input was tried guided by coverage: atheris has no wheel for Python {version} on {platform.machine()}")
    sys.exit()

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["perfgate"]):
    from readers import CORPUS, READERS, refusal
    from whole_inputs import WHOLE

TIMEOUT_S: Final = 10
"""For one input: a hundred times what the slowest whole one takes."""
MEMORY_MIB: Final = 2048
KEPT: Final = 12
"""Inputs of a reader, beside those that broke it."""
SMALL: Final = 4096
"""Bytes of an input that is kept."""
LARGEST: Final = 1 << 14
"""Bytes of an input; a whole export has nine thousand."""
NASTY: Final = (
    b"1e999", b"NaN", b"9999999999999999999999", b"-1", b"null", b"true", b"[[[[[[[[", b'"\\ud800"', b"\xff\xfe", b"..",
    b"*a", b"&a", b"<<", b"!!int", b"\x1b[31m", b"\x00", b"{}", b"[]", b"0.0000001%", b"1e-999", b"0x",
)  # fmt: skip
BROKEN: Final = "broken"
_COVERED = re.compile(r"^#\d+\s.*?\bcov: (\d+)", re.MULTILINE)
_TRIED = re.compile(r"^#(\d+)\s", re.MULTILINE)


class Fuzzed(NamedTuple):
    """What became of a reader.

    Args:
        tried: Inputs.
        covered: Edges of perfgate's code that they reached.
        broken: The input that broke it, if one did.
        told: What the fuzzer printed.
        whole: Whether the fuzzer ended as it should.
    """

    tried: int
    covered: int
    broken: Path | None
    told: str
    whole: bool


def fuzz(reader: str, seconds: int, scratch: Path) -> Fuzzed:
    """Fuzz a reader in a process of its own; inputs that reach new code come into ``scratch / "found"``."""
    found, log, words = scratch / "found", scratch / "log", scratch / "words"
    found.mkdir(parents=True)
    (found / "whole").write_bytes(WHOLE[reader])
    tokens = sorted({*re.findall(rb"[A-Za-z_]{3,24}", WHOLE[reader])})[:200]
    lines = ("".join(f"\\x{byte:02x}" for byte in token) for token in (*NASTY, *tokens))
    words.write_text("".join(f'"{line}"\n' for line in lines))
    # https://llvm.org/docs/LibFuzzer.html#options
    options = [f"-timeout={TIMEOUT_S}", f"-rss_limit_mb={MEMORY_MIB}", f"-max_len={LARGEST}", f"-dict={words}",
               f"-max_total_time={seconds}", f"-artifact_prefix={scratch}/{BROKEN}-by-"]  # fmt: skip
    kept = [str(CORPUS / reader)] if (CORPUS / reader).is_dir() else []
    child = os.fork()  # perfgate was instrumented once, which takes longer than many a reader's share
    if not child:
        try:
            stream = os.open(log, os.O_WRONLY | os.O_CREAT)
            os.dup2(stream, 1)
            os.dup2(stream, 2)
            atheris.Setup([__file__, *options, str(found), *kept], lambda data: _feed(reader, data, scratch))
            atheris.Fuzz()  # ends the process, but for what breaks in a first input
        except BaseException:  # noqa: BLE001 (the parent reads it)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    told = log.read_text(errors="replace")
    tried, covered = (int((pattern.findall(told) or [0])[-1]) for pattern in (_TRIED, _COVERED))
    return Fuzzed(tried, covered, next(scratch.glob(f"{BROKEN}*"), None), told, whole=status == 0)


def _feed(reader: str, data: bytes, scratch: Path) -> None:
    try:
        refusal(reader, data, scratch / "input")
    except Exception:
        (scratch / BROKEN).write_bytes(data)
        raise


def worth_keeping(reader: str, files: list[Path], scratch: Path) -> list[Path]:
    """The fewest inputs that reach every line of perfgate that any of them reaches, at most :data:`KEPT`."""
    reached = {file: _lines(reader, file.read_bytes(), scratch / "input") for file in files}
    chosen: list[Path] = []
    missing = set[tuple[str, int]]().union(*reached.values()) - _lines(reader, WHOLE[reader], scratch / "input")
    while missing and len(chosen) < KEPT:
        best = max(sorted(reached), key=lambda file: (len(reached[file] & missing), -file.stat().st_size))
        chosen.append(best)
        missing -= reached[best]
    return chosen


def _lines(reader: str, data: bytes, folder: Path) -> set[tuple[str, int]]:
    lines = set()

    def trace(frame: FrameType, _event: str, _value: Any) -> Any:
        if not frame.f_code.co_filename.startswith(str(ROOT / "perfgate")):
            return None
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        refusal(reader, data, folder)
    finally:
        sys.settrace(None)
    return lines


def main() -> None:
    """Fuzz, print the table, and end with 1 where a reader broke."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", default=[*READERS], metavar="READER", help=f"of {', '.join(READERS)}")
    parser.add_argument("--seconds", type=int, default=10, help="for each reader")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the inputs worth keeping are copied")
    parser.add_argument("--broken", type=Path, default=Path("broken"), help="where inputs that break a reader are put")
    said = parser.parse_args()
    print("| reader | inputs | edges | broken |\n|---|---|---|---|")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="perfgate-fuzz-") as folder:
        for reader in said.readers:
            scratch = Path(folder) / reader
            result = fuzz(reader, said.seconds, scratch)
            print(f"| {reader} | {result.tried} | {result.covered} | {int(not result.whole)} |", flush=True)
            if not result.whole:
                failed += 1
                print(f"{reader} broke: {_saved(result, said.broken)}\n{result.told[-3000:]}", file=sys.stderr)
            if said.keep:
                (said.keep / reader).mkdir(parents=True, exist_ok=True)
                small = [file for file in (scratch / "found").iterdir() if file.stat().st_size <= SMALL]
                for number, file in enumerate(worth_keeping(reader, small, scratch)):
                    shutil.copy(file, said.keep / reader / f"reaches-{number}")
    sys.exit(bool(failed))


def _saved(result: Fuzzed, folder: Path) -> str:
    if result.broken is None:
        return "it ended of itself"
    folder.mkdir(parents=True, exist_ok=True)
    return str(shutil.copy(result.broken, folder / f"{result.broken.parent.name}-{result.broken.name}"))


if __name__ == "__main__":
    main()
