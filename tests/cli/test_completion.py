"""What a shell is offered at the Tab key."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from perfgate.cli.main import main


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("perfgate explain outputs-d", ["outputs-differ"]),
        pytest.param("perfgate run --base pa", ["patched", "path="], marks=pytest.mark.needs("project")),
        ("perfgate check --head re", ["ref="]),
        ("perfgate judge la", ["latest"]),
        ("perfgate judge mine", ["mine-20261122T000000Z-abcdef"]),
        ("perfgate run --resume mine", ["mine-20261122T000000Z-abcdef"]),
        ("perfgate compare mine", ["mine-20261122T000000Z-abcdef"]),
    ],
)
def test_the_words_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, offered: list[str]) -> None:
    """Subjects of perfgate.toml, runs and reason codes are offered as far as they are begun."""
    monkeypatch.chdir(tmp_path)
    Path("perfgate.toml").write_text('[subjects.patched]\npath = "x"\n')
    (tmp_path / "runs" / "mine-20261122T000000Z-abcdef").mkdir(parents=True)
    (tmp_path / "runs" / "mine-20261122T000000Z-abcdef" / "run.json").touch()
    variables = {"_PERFGATE_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}

    said = CliRunner().invoke(main, env=variables, prog_name="perfgate").stdout
    assert [word.partition(",")[2] for word in said.splitlines()] == offered
