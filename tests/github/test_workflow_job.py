"""Smaller parts of a job: proposals of baselines, outputs, the workflows that are written for a repository."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from action_runner import ROOT, git, read_outputs
from click.testing import CliRunner, Result
from fake_github import REPOSITORY, TOKEN, FakeGitHub, Refusal, serving, zipped
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from stored import lineage

from perfgate import __version__
from perfgate.cli.init import LABELS, workflows
from perfgate.cli.main import main
from perfgate.errors import RecordError, UsageError
from perfgate.github.api import Api, ApiError, PullRequest
from perfgate.github.artifact import of_earlier_attempt, read_member, unpack
from perfgate.github.job_steps import propose
from perfgate.github.policy import touched
from perfgate.github.workflow_job import GithubJob


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    """An empty GitHub."""
    with serving(FakeGitHub()) as served:
        yield served


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with two committed baselines."""
    folder = tmp_path / "checkout"
    (folder / "baselines").mkdir(parents=True)
    for name in ("kept", "gone"):
        (folder / "baselines" / f"{name}.json").write_text("{}")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


@pytest.fixture
def proposed(github: FakeGitHub, checkout: Path) -> Callable[..., str]:
    """A function that proposes the checkout's baselines."""
    job = GithubJob({"GITHUB_API_URL": github.url, "GITHUB_TOKEN": TOKEN, "GITHUB_REPOSITORY": REPOSITORY,
                     "GITHUB_REF_NAME": "main"})  # fmt: skip
    return lambda body="why": propose(job, checkout, ["baselines"], "Promote", body)


# --- proposals


def test_proposal(github: FakeGitHub, checkout: Path, proposed: Callable[..., str]) -> None:
    """New, changed and deleted baselines become one commit on our branch and a pull request; nothing else does."""
    (checkout / "baselines" / "new.json").write_bytes("{\u00e9}\r\n".encode())
    (checkout / "baselines" / "gone.json").unlink()
    (checkout / "engine.py").write_text("not ours")

    said = proposed()

    (number,) = github.pulls
    assert said == f"pull request {number} proposes baselines/gone.json, baselines/new.json"
    commit = github.objects[github.refs["heads/perfgate/baselines"]]
    entries = {entry["path"]: entry["sha"] for entry in github.objects[commit["tree"]]["tree"]}
    assert entries.pop("baselines/gone.json") is None
    contents = {path: github.objects[sha]["content"] for path, sha in entries.items()}
    assert contents == {"baselines/new.json": "{\u00e9}\r\n"}
    assert commit["parents"] == [git(checkout, "rev-parse", "HEAD")]
    assert github.pulls[number] == {"title": "Promote", "body": "why", "head": "perfgate/baselines", "base": "main"}


def test_a_proposal_of_the_checkout(
    github: FakeGitHub, checkout: Path, proposed: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is proposed are the checkout's changes, whatever repository the environment names."""
    (checkout / "baselines" / "new.json").write_text("{}")
    head = git(checkout, "rev-parse", "HEAD")
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))

    proposed()

    assert github.objects[github.refs["heads/perfgate/baselines"]]["parents"] == [head]


def test_one_proposal(github: FakeGitHub, checkout: Path, proposed: Callable[..., str]) -> None:
    """Without a change nothing is asked of GitHub; the next night replaces the proposal that nobody has merged yet."""
    assert "nothing to propose" in proposed()
    assert not github.requests
    (checkout / "baselines" / "new.json").write_text("{}")
    proposed()
    first = github.refs["heads/perfgate/baselines"]
    proposed("again")
    assert [pull["body"] for pull in github.pulls.values()] == ["again"]
    assert github.refs["heads/perfgate/baselines"] != first


def propose_by_command(github: FakeGitHub, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """``perfgate github propose baselines`` in a job."""
    monkeypatch.chdir(checkout)
    environment = {"GITHUB_API_URL": github.url, "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_TOKEN": TOKEN,
                   "GITHUB_REF_NAME": "main", "GITHUB_RUN_ID": "7"}  # fmt: skip
    return CliRunner().invoke(main, ["github", "propose", "baselines"], env=environment)


def test_a_proposal_says_what_moved(github: FakeGitHub, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its body holds the entries that are new, why they are there, and how far each metric moved."""
    file = checkout / "baselines" / "class" / "cell.json"
    file.parent.mkdir()
    file.write_text(lineage([[0.0, 0.001]]).text)
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "a visit")
    file.write_text(lineage([[0.0, 0.001], [0.02, 0.02]]).text)
    result = propose_by_command(github, checkout, monkeypatch)

    assert result.exit_code == 0, result.output
    (pull,) = github.pulls.values()
    assert "    baselines/class/cell.json\n    1 promotion shared" in pull["body"]
    assert "    entry 2: equivalent" in pull["body"]
    (row,) = [line.split() for line in pull["body"].splitlines() if line.split()[:1] == ["itl_median"]]
    assert row[-2:] == ["+0.98", "%"]


def test_propose_refused(github: FakeGitHub, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proposal that GitHub refuses is an error: nobody would look for what was never proposed."""
    (checkout / "baselines" / "new.json").write_text("{}")
    github.refusals.append(Refusal("POST", ".*/git/refs", 403))
    result = propose_by_command(github, checkout, monkeypatch)
    assert (result.exit_code, "GitHub answered 403 Resource not accessible" in result.output) == (1, True)


# --- the job


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.text(st.characters(codec="utf-8", exclude_characters="\r"))))
def test_outputs_hold_anything(values: dict[str, str]) -> None:
    """A value with line ends, equal signs or delimiters of its own sets its own output and no other."""
    with tempfile.NamedTemporaryFile("r", encoding="utf-8", newline="") as file:
        GithubJob({"GITHUB_OUTPUT": file.name}).set_outputs(values)

        assert read_outputs(file.read()) == values


def test_format_github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--format github fills summary and outputs of the step that it runs in, and works where there is none."""
    csv = tmp_path / "times.csv"
    rows = [f"{n},{side},itl_median,ms,{5 + n / 1000}" for n in range(6) for side in ("base", "head")]
    csv.write_text("pair,subject,metric,unit,value\n" + "\n".join(rows) + "\n")
    words = ["compare", str(csv), "--gate", "itl_median:1%:5%", "--format", "github"]
    bare = CliRunner().invoke(main, words)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "outputs"))

    result = CliRunner().invoke(main, words)

    assert (result.exit_code, result.stdout) == (bare.exit_code, bare.stdout) == (0, bare.stdout)
    assert (tmp_path / "summary").read_text().startswith("**PASS")
    assert read_outputs((tmp_path / "outputs").read_text()) == {"verdict": "pass", "exit_status": "0", "run_folder": ""}


FILES = ["perfgate.toml", "perfgate.toml.bak", "scenarios/models/a/config.json", "baselinesque/a", "src/a.py"]


@pytest.mark.parametrize(
    ("files", "pattern", "counted"),
    [
        (FILES, "scenarios/*.yaml", ("perfgate.toml", "scenarios/models/a/config.json")),
        (FILES, "./scenarios/*.yaml", ("perfgate.toml", "scenarios/models/a/config.json")),
        (["a.yaml", "b/a.yaml"], "a.yaml", ("a.yaml",)),
        # A pattern that begins with a wildcard may find scenarios, and their models, anywhere.
        *((["llama.yaml", "models/a/config.json"], pattern, ("llama.yaml", "models/a/config.json"))
          for pattern in ("*.yaml", "**/*.yaml", "./*.yaml", "scen*/a.yaml", "[ab].yaml")),
    ],
)  # fmt: skip
def test_touched(files: list[str], pattern: str, counted: tuple[str, ...]) -> None:
    """What a change is judged by: configuration, baselines, and all that lies in the folders of scenarios."""
    assert touched(files, [pattern]) == counted


def test_a_page_on_another_server(github: FakeGitHub) -> None:
    """Pages are followed on GitHub alone: the token would go wherever they lead."""
    github.refusals.append(Refusal("GET", "/list", 200, {"Link": '<http://evil.example/x>; rel="next"'}, "[]"))

    with pytest.raises(ApiError, match="expected a list"):
        list(Api(github.url, TOKEN).pages(PullRequest, "/list"))


@pytest.mark.parametrize("how", ["reset", "closed"])
def test_a_download_that_breaks_off(github: FakeGitHub, tmp_path: Path, how: str) -> None:
    """A connection that ends half-way is an error of ours that says so, and leaves no half file."""
    item = github.add_artifact("a", os.urandom(4_000_000))
    github.broken = how

    with pytest.raises(ApiError, match=r"archive\.zip: the download broke off: "):
        Api(github.url, TOKEN).download(f"/repos/{REPOSITORY}/actions/artifacts/{item['id']}/zip",
                                        tmp_path / "archive.zip", 10_000_000)  # fmt: skip

    assert not list(tmp_path.iterdir())


RUN = {"id": 7, "path": ".github/workflows/perfgate.yml@refs/heads/x", "event": "push", "head_sha": "a" * 40,
       "head_repository": {"full_name": REPOSITORY}}  # fmt: skip
ATTEMPT = GithubJob({"GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "2", "GITHUB_REPOSITORY": REPOSITORY,
               "GITHUB_EVENT_NAME": "push",
               "GITHUB_WORKFLOW_REF": f"{REPOSITORY}/.github/workflows/perfgate.yml@refs/heads/x"})  # fmt: skip


def test_an_earlier_attempt(github: FakeGitHub) -> None:
    """What an earlier attempt of this workflow run left is found, and in a first attempt nothing is asked for."""
    github.runs[7] = RUN
    item, api = github.add_artifact("a", b"x"), Api(github.url, TOKEN)
    github.add_artifact("a", b"another run's, and newer", run_id=8, created_at="2027-01-01T00:00:00Z")

    found = of_earlier_attempt(api, ATTEMPT, "a", "a" * 40)

    assert found is not None
    assert found.id == item["id"]
    github.requests.clear()
    assert of_earlier_attempt(api, GithubJob({**ATTEMPT.environment, "GITHUB_RUN_ATTEMPT": "1"}), "a", "a" * 40) is None
    assert not github.requests


@pytest.mark.parametrize(
    ("key", "value"),
    [("path", ".github/workflows/evil.yml"), ("event", "workflow_dispatch"), ("head_sha", "b" * 40), ("id", 8),
     ("head_repository", {"full_name": "fork/engine"}), ("head_repository", None)],
)  # fmt: skip
def test_runs_of_another_origin(github: FakeGitHub, key: str, value: object) -> None:
    """Of a run that GitHub lists with another workflow, event, commit or repository nothing is taken."""
    github.runs[7] = {**RUN, key: value}

    with pytest.raises(RecordError, match=f"another {key} than this job's"):
        of_earlier_attempt(Api(github.url, TOKEN), ATTEMPT, "a", "a" * 40)


def _packed(method: int, **files: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("archive", "said"),
    [
        *((zipped({"run/run.json": b"{}", name: b"x"}), "names a file outside its folder")
          for name in ("../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "C:evil")),
        (_packed(zipfile.ZIP_DEFLATED), "holds nothing"),
        (_packed(zipfile.ZIP_LZMA, a=b"x"), "packs 'a' in a way that GitHub does not"),
        (_packed(zipfile.ZIP_BZIP2, a=b"x"), "packs 'a' in a way that GitHub does not"),
        (zipped({"a": b"x", "a/b": b"x"}), "cannot be unpacked"),
        (zipped({"a": b"x"}).replace(b"a", b"\0"), "names a file outside its folder: ''"),
        (zipped({"a" * 300: b"x"}), "cannot be unpacked"),
    ],
)  # fmt: skip
def test_archives_that_no_runner_makes(tmp_path: Path, archive: bytes, said: str) -> None:
    """An archive that leads out of its folder, or is of no use, is refused whole, and leaves nothing behind."""
    (tmp_path / "archive.zip").write_bytes(archive)

    with pytest.raises(RecordError, match=said):
        unpack(tmp_path / "archive.zip", tmp_path / "runs")

    assert [file.name for file in tmp_path.iterdir()] == ["archive.zip"]


@given(
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2]),
    st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_damaged_archives(method: int, damage: list[tuple[int, int]]) -> None:
    """An archive with some bytes changed is still read, or is an error of ours, and never another one."""
    data = bytearray(_packed(method, a=b"some text, some text, some text", b=b"more"))
    for place, value in damage:
        data[place % len(data)] = value
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "archive.zip").write_bytes(data)
        with contextlib.suppress(RecordError):
            read_member(file, "a", 1000)
        with contextlib.suppress(RecordError):
            unpack(file, Path(folder) / "runs", 1000)


# --- workflows for a repository


def test_workflows() -> None:
    """The workflows are those of the templates with our action pinned, and the runner's labels in both places."""
    written = workflows(f"me/perfgate@{'1a' * 20}", ("self-hosted", "h200"))

    names = [Path(path).stem for path in written if path.startswith(".github/workflows/perfgate")]
    others = ("comment", "fleet", "fleet-deadline", "history", "nightly", "shard")
    assert sorted(names) == ["perfgate", *(f"perfgate-{name}" for name in others)]
    del written[".github/workflows/perfgate-fleet-deadline.yml"]  # which measures nothing, and has no action
    for text in written.values():
        assert "OWNER" not in text
        assert "0" * 40 not in text
        assert f"@{'1a' * 20} # {__version__}" in text
    job = YAML(typ="safe", pure=True).load(written[".github/workflows/perfgate.yml"])["jobs"]["measure"]
    assert job["runs-on"] == ["self-hosted", "h200"]
    assert job["concurrency"]["group"] == "perfgate-h200"
    for action in ("me/perfgate@v1", "me/perfgate", f"me/perfgate@{'A' * 40}"):  # a tag can be moved
        with pytest.raises(UsageError, match="40 hexadecimal digits"):
            workflows(action, LABELS)


def test_actions_of_others_are_pinned() -> None:
    """Every action of others that ours and the templates use is named by its commit."""
    files = [*ROOT.glob("perfgate/templates/github/*.yml"), *ROOT.glob(".github/**/*.yml"), ROOT / "action.yml"]
    used = [line.split("uses: ")[1] for file in files for line in file.read_text().splitlines() if "uses: " in line]

    assert len(used) > 8
    others = [one for one in used if not one.startswith("./")]  # a file of the same commit
    assert not [one for one in others if len(one.split(" ")[0].rpartition("@")[2]) != 40]
