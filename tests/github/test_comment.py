"""The comment on a pull request: one, of ours, from an artifact that may be anything, on a GitHub that may refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_github import REPOSITORY, TOKEN, FakeGitHub, Refusal, serving, zipped
from hand_made import cell, gate, judged, spread, trials
from hypothesis import example, given
from hypothesis import strategies as st

from perfgate.cli.main import main
from perfgate.errors import RecordError
from perfgate.github.api import Repository, WorkflowRun
from perfgate.github.comment import MARKER, SHOWN, comment_body, policy_note
from perfgate.github.github_markdown import COMMENT_BYTES
from perfgate.github.verdict import read_verdict
from perfgate.github.workflow_job import JobPlan
from perfgate.judge.cell_facts import BaselineOutcome
from perfgate.judge.outcome import CellOutcome, GateOutcome, Outcome, verdict_json
from perfgate.kernels.outcomes import CounterRow, CountersOutcome
from perfgate.models import Note
from perfgate.report.formats import render
from perfgate.report.interval_strip import interval_lines
from perfgate.report.markdown import NAME, fenced

HEAD = "a" * 40
SLOWER = judged(trials(spread(0.01, 0.0002, 6)))
RUN = WorkflowRun(
    id=7, head_sha=HEAD, head_branch="pull-request/12", conclusion="failure", event="push",
    head_repository=Repository(full_name=REPOSITORY),
)  # fmt: skip
PAGE = f"https://github.com/{REPOSITORY}/actions/runs/7"
COMMENTS = f"/repos/{REPOSITORY}/issues/12/comments"

Comment = Callable[..., Result]


def plan(number: int | None = 12) -> bytes:
    """The ``job.json`` of an artifact that claims to be of this pull request."""
    made = JobPlan(
        repository=REPOSITORY, pull_request=number, base_branch="main", base="b" * 40, merge_base="b" * 40, head=HEAD,
        policy=Path("/policy"), scenarios=("scenarios/a.yaml",), changed=(), artifact="perfgate-run-0", words=(),
        runs=Path("/runs"),
    )  # fmt: skip
    return made.model_dump_json().encode()


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    """A GitHub with an open pull request 12 at the commit that was measured."""
    pulls: dict[int, dict[str, Any]] = {12: {"state": "open", "head": {"sha": HEAD}, "base": {"ref": "main"}}}
    with serving(FakeGitHub(pulls=pulls, files={12: ["engine.py"]})) as served:
        yield served


@pytest.fixture
def comment(github: FakeGitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Comment:
    """A function that runs the step on the event of a run; what it says of the run can be changed by name."""
    monkeypatch.setattr("perfgate.github.api.time.sleep", lambda _: None)

    def one(*words: str, repository: str = REPOSITORY, **run: Any) -> Result:
        usual = {"id": 7, "head_sha": HEAD, "head_branch": "pull-request/12", "conclusion": "failure", "event": "push",
                 "head_repository": {"full_name": REPOSITORY}}  # fmt: skip
        event = {"repository": {"full_name": repository}, "workflow_run": {**usual, **run}}
        (tmp_path / "event.json").write_text(json.dumps(event))
        environment = {
            "GITHUB_API_URL": github.url, "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_TOKEN": TOKEN,
            "GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_SERVER_URL": "https://github.com",
        }  # fmt: skip
        return CliRunner().invoke(main, ["github", "comment", *words], env=environment)

    return one


def verdict(outcome: Outcome = SLOWER) -> dict[str, bytes]:
    """The content of the small artifact."""
    return {"verdict.json": verdict_json(outcome).encode(), "job.json": plan()}


def bodies(github: FakeGitHub) -> list[str]:
    """Comments on the pull request."""
    return [item["body"] for item in github.comments.get(12, [])]


# --- one comment


def test_first_comment(github: FakeGitHub, comment: Comment) -> None:
    """The first run writes a comment: our report of the outcome, the commit and the run's page."""
    github.add_artifact("perfgate-verdict", verdict())

    result = comment()

    assert (result.exit_code, result.output) == (0, "pull request 12: comment written\n")
    (body,) = bodies(github)
    page, commands, _ = render("outcome", "markdown", SLOWER).partition("\n\nTo find out more:")
    headline, _, rest = page.partition("\n\n")
    assert body.startswith(f"{MARKER}\n\n{headline}\n\n{fenced(chr(10).join(interval_lines(SLOWER)))}\n\n{rest}")
    assert commands
    assert commands not in body  # an artifact may have made them up
    assert body.endswith(
        f"Commit {HEAD[:12]}: [run and artifacts](https://github.com/{REPOSITORY}/actions/runs/7){SHOWN}\n"
    )
    assert not github.leaks


def test_comment_is_found_on_a_later_page(github: FakeGitHub, comment: Comment) -> None:
    """Ours is found behind pages of others' and rewritten; a marker that somebody else wrote is not taken for it."""
    for n in range(5):
        github.add_comment(12, f"{MARKER}\n{n}" if n == 1 else str(n), "somebody")
    ours = github.add_comment(12, f"{MARKER}\nold")
    github.add_artifact("perfgate-verdict", verdict())

    assert comment().exit_code == 0
    assert comment().output == "pull request 12: the comment says so already\n"

    assert len(bodies(github)) == 6
    assert "REGRESSED" in ours["body"]
    assert [method for method, _ in github.requests if method != "GET"] == ["PATCH"]


def test_a_comment_of_another_shape(github: FakeGitHub, comment: Comment) -> None:
    """An answer that cannot be read is a warning with its place, as a refusal is, and nothing is written."""
    github.comments[12] = [{"body": MARKER, "user": {"login": "github-actions[bot]"}}]
    github.add_artifact("perfgate-verdict", verdict())

    result = comment()

    assert result.exit_code == 0
    assert f"no comment was written: {COMMENTS}: its answer cannot be read: id: Field required\n" in result.output
    assert not [method for method, _ in github.requests if method != "GET"]


def test_doubled_comments_become_one(github: FakeGitHub, comment: Comment) -> None:
    """Of two comments that jobs at the same time wrote the older one stays, rewritten."""
    first, _ = github.add_comment(12, f"{MARKER}\na"), github.add_comment(12, f"{MARKER}\nb")
    github.add_artifact("perfgate-verdict", verdict())

    comment()

    assert [item["id"] for item in github.comments[12]] == [first["id"]]


def test_newest_artifact(github: FakeGitHub, comment: Comment) -> None:
    """After a re-run the newest artifact counts, on whatever page; an expired one does not."""
    for outcome in (SLOWER, judged(trials(spread(0.0, 0.0002, 4)))):
        github.add_artifact("something-else", b"")
        github.add_artifact("perfgate-verdict", verdict(outcome))
    github.add_artifact("perfgate-verdict", verdict(), expired=True)
    github.add_artifact("perfgate-verdict", verdict(), run_id=8)

    comment()

    assert "**PASS: " in bodies(github)[0]


def test_no_verdict(github: FakeGitHub, comment: Comment) -> None:
    """A run that ended without a verdict does not leave an older pass standing."""
    github.add_comment(12, f"{MARKER}\n\n**PASS**")

    comment(conclusion="cancelled")

    assert "NOT MEASURED: the run ended as cancelled without a verdict" in bodies(github)[0]
    assert "PASS" not in bodies(github)[0]


def test_policy_is_named(github: FakeGitHub, comment: Comment) -> None:
    """Files that changes are judged by are named as GitHub lists them, moved ones too, not as the artifact claims."""
    github.files[12] = [
        "engine.py",
        "scenarios/a.yaml => a.yaml",
        "baselines/h200/a.json",
        "perfgate.toml",
        "scenarios.py",
    ]
    github.add_artifact("perfgate-verdict", verdict())

    comment()

    assert "judged by: baselines/h200/a.json, perfgate.toml, scenarios/a.yaml. It was" in bodies(github)[0]


def test_names_of_files() -> None:
    """A file's name, which anybody may choose, is neither a link nor a reference nor reordered."""
    names = ("www.evil.example/#1", "https://evil.example", "GH-1 @all", "a\u202eb", "<img>|`\n# x")

    note = policy_note(tuple(f"scenarios/{name}" for name in names))

    shown = note.replace("\\", "")
    assert not re.search(r"(?i)www\.|://|#\w|gh-\d|@\w|<|\n|\u202e", shown)
    assert "scenarios/GH\u200b-1 @\u200ball, scenarios/a\ufffdb, " in shown


# --- whose it is


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"head_sha": "c" * 40}, "pull request 12 is at aaaaaaaaaaaa, the run was at cccccccccccc: nothing"),
        ({"event": "merge_group"}, "the run judged no pull request: nothing to comment on"),
        ({"head_branch": "main"}, "pull request 12: comment written"),
    ],
    ids=["moved-on", "merge-queue", "number-from-the-artifact"],
)
def test_which_pull_request(github: FakeGitHub, comment: Comment, run: dict[str, Any], said: str) -> None:
    """A number counts only where the pull request is at the very commit that was measured."""
    github.add_artifact("perfgate-verdict", verdict())

    result = comment(**run)

    assert result.exit_code == 0
    assert result.output.startswith(said)
    assert bool(bodies(github)) == said.endswith("written")


@pytest.mark.parametrize("claimed", [None, 13, -1, 10**12])
def test_claimed_numbers(github: FakeGitHub, comment: Comment, claimed: int | None) -> None:
    """An artifact that claims another pull request's number, or none, gets no comment anywhere."""
    github.pulls[13] = {"state": "open", "head": {"sha": "d" * 40}}
    github.add_artifact("perfgate-verdict", {**verdict(), "job.json": plan(claimed)})

    assert comment(head_branch="patch-1").exit_code == 0
    assert not github.comments


def test_events_of_others(github: FakeGitHub, comment: Comment) -> None:
    """An event of another repository, or of another kind, is refused before anything is asked."""
    assert comment(repository="other/engine").exit_code == 2
    assert comment(head_sha="--upload-pack").exit_code == 2
    assert not github.requests


@pytest.mark.parametrize("event", ["push", "pull_request"])
@pytest.mark.parametrize("origin", [{"full_name": "fork/engine"}, None], ids=["fork", "gone"])
def test_forks_cannot_praise_themselves(github: FakeGitHub, comment: Comment, event: str, origin: Any) -> None:
    """A well-formed pass that a fork's own workflow uploaded at its pull request's commit is never shown or fetched."""
    github.add_artifact("perfgate-verdict", verdict(judged(trials(spread(0.0, 0.0002, 4)))))

    result = comment("--pull-request-runs", event=event, head_branch="patch-1", head_repository=origin)

    assert result.exit_code == 0
    assert result.output.startswith(f"the run is one of {'fork/engine' if origin else 'a repository that is gone'}, ")
    assert not github.requests


@pytest.mark.parametrize(
    ("words", "said"), [((), "only with --pull-request-runs"), (("--pull-request-runs",), "written")]
)
def test_pull_request_runs(github: FakeGitHub, comment: Comment, words: tuple[str, ...], said: str) -> None:
    """Runs that pull_request started, whose workflow is the change's own, count only where somebody asked for it."""
    github.add_artifact("perfgate-verdict", verdict())

    result = comment(*words, event="pull_request", head_branch="patch-1")

    assert said in result.output
    assert len(bodies(github)) == len(words)


# --- a GitHub that refuses


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal("POST", COMMENTS, 403),
        Refusal("GET", COMMENTS, 403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "99999999999"}),
        Refusal("GET", ".*/artifacts", 502),
        Refusal("GET", r"/blob/\d+", 403),
        Refusal("POST", COMMENTS, 500),
        Refusal("GET", COMMENTS, 403, {"retry-after": "\u00b2"}),
        Refusal("POST", COMMENTS, 303, {"location": "/elsewhere"}),
    ],
    ids=["fork", "rate-limit", "down", "storage", "perhaps-written", "no-number-of-seconds", "another-page"],
)
def test_refusals(github: FakeGitHub, comment: Comment, refusal: Refusal) -> None:
    """Where GitHub refuses, that is a warning and no failure; a POST that may have arrived is not sent twice."""
    github.refusals.append(refusal)
    github.add_artifact("perfgate-verdict", verdict())

    result = comment()

    assert result.exit_code == 0
    assert re.match(r"::warning title=perfgate::no comment was written: \S+: GitHub answered \d+ ", result.output)
    assert not bodies(github)
    assert github.requests.count(("POST", COMMENTS)) <= 1


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal("POST", COMMENTS, 403, {"retry-after": "7"}, "secondary rate limit", times=1),
        Refusal("GET", COMMENTS, 429, times=2),
        Refusal("GET", COMMENTS, 403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "7"}, times=1),
        Refusal("GET", f"/repos/{REPOSITORY}/pulls/12", 502, times=2),
    ],
    ids=["secondary-limit", "too-many", "limit-that-ends", "down-for-a-moment"],
)
def test_patience(github: FakeGitHub, comment: Comment, refusal: Refusal) -> None:
    """A limit that is over soon, or a server that comes back, costs no comment and doubles none."""
    github.refusals.append(refusal)
    github.add_artifact("perfgate-verdict", verdict())

    assert comment().exit_code == 0
    assert len(bodies(github)) == 1


def test_deleted_meanwhile(github: FakeGitHub, comment: Comment) -> None:
    """A comment that somebody deletes between finding and rewriting it is written anew."""
    github.add_comment(12, f"{MARKER}\nold")
    github.refusals.append(Refusal("PATCH", ".*", 404))
    github.add_artifact("perfgate-verdict", verdict())

    assert comment().exit_code == 0
    assert "REGRESSED" in bodies(github)[-1]


# --- an artifact that may be anything


def changed(*path: str | int, value: str) -> bytes:
    """The archive of a verdict in which the field at this path has another value, written as it stands here."""
    content = json.loads(verdict_json(SLOWER))
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = "HERE"
    return zipped({"verdict.json": json.dumps(content).replace('"HERE"', value).encode()})


HOSTILE: dict[str, tuple[bytes, str]] = {
    "no archive": (b"PK\x03\x04 nothing", "cannot be unpacked: File is not a zip file"),
    "no json": (zipped({"verdict.json": b"{"}), "invalid JSON, or truncated: Expecting property name"),
    "no verdict": (zipped({"verdict.json": b"[]"}), "not a perfgate-verdict: "),
    "another version": (changed("format", value='"perfgate-verdict/9"'), "has format perfgate-verdict/9"),
    "unknown key": (changed("html", value='"<b>"'), "html: Extra inputs are not permitted"),
    "nan": (changed("alpha", value="NaN"), "holds NaN, which is not a number"),
    "infinite": (changed("cells", 0, "gates", 0, "ignorable", value="1e400"), "holds 1e400, larger than any number"),
    "endless": (changed("cells", 0, "pairs", value="9" * 9999), "larger than any integer"),
    "text for a number": (changed("cells", 0, "pairs", value='"6"'), "cells.0.pairs: Input should be a valid integer"),
    "deep": (zipped({"verdict.json": b'{"a":' * 100_000}), "it is nested too deeply"),
    "bomb": (zipped({"verdict.json": b" " * 50_000_000}), "unpacks to 50000000 bytes"),
    "way out": (zipped({**verdict(), "../../.bashrc": b""}), "names a file outside its folder: '../../.bashrc'"),
    "its own headline": (changed("verdict", value='"pass"'), "it contradicts itself"),
    "markup for a code": (
        changed("reasons", value='[{"code": "x` @all `", "text": ""}]'), "a note has an unknown code"
    ),
    "plan": (zipped({**verdict(), "job.json": b'{"pull_request": "12; rm"}'}), "job.json: not a perfgate-job: format"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_malformed_artifacts(github: FakeGitHub, comment: Comment, kind: str) -> None:
    """An artifact that is not what it should be is an error with its reason, and nothing is written."""
    archive, reason = HOSTILE[kind]
    github.add_artifact("perfgate-verdict", archive)

    result = comment()

    assert result.exit_code == 2, result.output
    assert reason in result.output
    assert not bodies(github)


def test_a_package_or_role_may_be_called_code(github: FakeGitHub, comment: Comment) -> None:
    """The key of a mapping with names of the user's own is not taken for the code of a note."""
    versions = '{"base": {"code": "1.0 (local)"}, "head": {}}'
    github.add_artifact("perfgate-verdict", changed("cells", 0, "versions", value=versions))

    assert comment().exit_code == 0
    assert len(bodies(github)) == 1


@pytest.mark.parametrize("claimed", [100, 10**10])
def test_oversized_artifacts(github: FakeGitHub, comment: Comment, claimed: int) -> None:
    """An artifact that is too large is not read, whatever size it claims."""
    github.add_artifact("perfgate-verdict", b"x" * 9_000_000, size_in_bytes=claimed)

    result = comment()

    assert not bodies(github)
    assert "9000000" in result.output or "8388608" in result.output


MARKUP = st.text(st.sampled_from("<>[]()!`*_~|#@$&\\\n:/.w-+ abhtpsx\u202e\x1b\u200b1"), max_size=40) | st.sampled_from(
    ["<img src=x onerror=alert(1)>", "[x](https://evil.example)", "@everyone", "![](https://evil.example/x.png)",
     "https://evil.example", "www.evil.example", "<!-- perfgate", "#1", "gh-1", "o/e#1", "a@b.example", "```\n# x",
     "\n\n# x", "</details>"]
)  # fmt: skip


@st.composite
def hostile_outcomes(draw: st.DrawFn) -> Outcome:
    """A regressed outcome whose every free text is chosen by somebody who wants to be seen."""
    texts = st.builds(Note, code=st.sampled_from(["engine-failed", "outputs-differ"]), text=MARKUP)
    (one,) = SLOWER.cells
    gates = tuple(
        GateOutcome(**{**one.gates[0].model_dump(), "metric": draw(MARKUP), "where": draw(MARKUP),
                       "cautions": (draw(texts),), "reasons": (draw(texts),)})
        for _ in range(2)
    )  # fmt: skip
    versions: Any = {"base": {"vllm": draw(MARKUP)}, "head": {"vllm": draw(MARKUP)}}
    row = CounterRow(role=draw(MARKUP), place=draw(MARKUP), kernel=draw(MARKUP), launches={"base": 1, "head": 1},
                     base={"dram_bytes": 1.0}, bound={"base": draw(MARKUP)}, distance={"base": 1.5})  # fmt: skip
    counted = CountersOutcome(
        verdict="regressed", rows=(row,), sentences={"gemm": draw(MARKUP)}, reasons=(draw(texts),)
    )
    stored = BaselineOutcome(
        digest=draw(MARKUP), machine_class=draw(MARKUP), visits=4, first_utc="2026-01-01", last_utc=draw(MARKUP)
    )
    changes: dict[str, Any] = {
        "counters": counted,
        "baseline": stored,
        "name": draw(MARKUP),
        "gates": gates,
        "reasons": (draw(texts),),
        "versions": versions,
    }
    hostile = CellOutcome.model_validate(one.model_copy(update=changes).model_dump())
    return SLOWER.model_copy(update={"run": draw(MARKUP), "cells": (hostile,), "reasons": (draw(texts),)})


# No references, also once Markdown has become text.
@example(SLOWER.model_copy(update={"cells": (SLOWER.cells[0].model_copy(update={"name": "#\\1 gh-\\1"}),)}))
@given(hostile_outcomes())
def test_no_markup_gets_through(outcome: Outcome) -> None:
    """Whatever an artifact says, a comment has no HTML, link, mention, reference or heading that is not ours."""
    body = comment_body(RUN, PAGE, read_verdict(verdict_json(outcome).encode(), "artifact"), ())

    shown = re.sub(r"(?ms)^(`{3,})text\n.*?\n\1$", "", body.removeprefix(MARKER))
    shown = re.sub(rf"`(engine-failed|outputs-differ|{NAME.pattern})`", "", shown)
    shown = shown.removesuffix(f"[run and artifacts]({PAGE}){SHOWN}\n")
    unescaped = re.sub(r"\\.", "", shown)
    assert not re.search(r"<|https?://|www\.|(?i:@\w)|[`\[\]~]", unescaped), unescaped
    assert len(re.findall(r"(?m)^\s*#", unescaped)) == 1
    rendered = re.sub(r"\\(.)", r"\1", shown)  # GitHub seeks references there; "#\\1" is none
    assert not re.search(r"(?i)#\d|gh-\d", rendered), shown


def test_long_comments_keep_the_worst() -> None:
    """A comment beyond GitHub's limit loses what passed before what is red, says so, and stays within it."""
    (red,) = SLOWER.cells
    (good,) = judged(trials(spread(0.0, 0.0002, 4)), cell("fine", [gate(), gate("tpot_mean")])).cells
    passed = tuple(good.model_copy(update={"name": f"fine-{n}"}) for n in range(400))
    words = Note(code="engine-failed", text="died:\n" + "x" * 200_000)
    red = red.model_copy(update={"reasons": (words,)})

    body = comment_body(RUN, PAGE, SLOWER.model_copy(update={"cells": (*passed, red)}), ())

    assert COMMENT_BYTES * 0.9 < len(body.encode()) <= COMMENT_BYTES
    assert "| `itl_median` | 5.000 ms | 5.050 ms |" in body
    assert "_Shortened to fit GitHub's limit" in body
    assert body.count("```") % 2 == 0
    assert "### fine-0:" in body
    assert "### fine-399:" not in body


JSON = st.recursive(st.none() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_an_error(data: bytes) -> None:
    """Bytes that are no verdict are an error of ours, never a crash."""
    with pytest.raises(RecordError, match=r"^artifact"):
        read_verdict(data, "artifact")
