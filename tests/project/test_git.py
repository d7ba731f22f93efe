"""What a ref means, what the working tree holds, and that nothing of the user's is touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from git_project import GitProject
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfgate.errors import ExitStatus, NotMeasuredError, UsageError
from perfgate.project.git import Git, Repository, remove_worktree


@pytest.fixture
def project(tmp_path: Path) -> GitProject:
    """A repository with one commit of three files, one of them ignored by name."""
    project = GitProject(tmp_path / "a project")
    project.commit({"kept.py": "1\n", "gone.py": "2\n", ".gitignore": "ignored*\n"})
    return project


def checked_out(project: GitProject, snapshot: str, folder: Path) -> dict[str, str]:
    """The files of a commit by name, as they are checked out."""
    Repository(project.folder).check_out(snapshot, folder)
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != ".git")
    return {str(file.relative_to(folder)): file.read_text() for file in files}


def test_git_starts_no_program_that_the_repository_names(project: GitProject) -> None:
    """Neither a hook nor the watcher of the file system, whatever git is asked."""
    program = project.folder / "ignored-program"
    program.write_text(f'#!/bin/sh\ntouch "{project.folder}/ignored-started"\n')
    program.chmod(0o755)
    project.git("config", "core.fsmonitor", str(program))
    project.write({"kept.py": "2\n"})

    assert Repository(project.folder).find(".").changes
    assert Git(project.folder).run("diff", "--name-only", "HEAD") == "kept.py\n"

    assert not (project.folder / "ignored-started").exists()


def test_one_module_starts_git() -> None:
    """Whatever must hold of every command of git is written once."""
    package = Path(__file__).parents[2] / "perfgate"
    assert [file.name for file in package.rglob("*.py") if '["git",' in file.read_text()] == ["git.py"]


def test_the_merge_base_is_where_the_branch_began(project: GitProject) -> None:
    """What others merged meanwhile is not in it; A...B names both ends, HEAD where one is left out."""
    began = project.git("rev-parse", "HEAD")
    project.git("switch", "--quiet", "--create", "topic")
    topic = project.commit({"kept.py": "topic\n"})
    project.git("switch", "--quiet", "main")
    main = project.commit({"gone.py": "main\n"})
    repository = Repository(project.folder)

    assert {repository.find(ref).commit for ref in ("topic...", "...topic", "main...topic")} == {began}
    assert repository.find("topic...").ref == "merge base of topic and HEAD"
    assert [repository.find(ref).commit for ref in ("topic", "main", ".", "main~1")] == [topic, main, main, began]


def test_a_clean_working_tree_is_its_commit(project: GitProject) -> None:
    """Without changes the working tree is HEAD: the same build, under the same name. Ignored files are no change."""
    project.write({"ignored.log": "x"})
    found = Repository(project.folder).find(".")
    assert (found.commit, found.changes, found.snapshot) == (project.git("rev-parse", "HEAD"), "", found.commit)
    assert found.name == found.commit[:12]


def test_a_dirty_working_tree_is_named_and_checked_out_as_git_sees_it(project: GitProject, tmp_path: Path) -> None:
    """Edits, new and removed files are in, ignored ones and what perfgate wrote are not; nothing is touched."""
    project.write({"staged.py": "3\n", "half.py": "staged\n"})
    project.git("add", "staged.py", "half.py")
    project.git("stash", "push", "--quiet", "--", "half.py")
    project.write({"kept.py": "edited\n", "new/über.py": "4\n", "ignored.log": "x", "runs/r/run.json": "{}"})
    (project.folder / "gone.py").unlink()
    before = project.state()

    repository = Repository(project.folder / "new")
    found = repository.find(".", left_out=[project.folder / "runs"])

    assert project.state() == before
    assert found.name == f"{project.git('rev-parse', 'HEAD')[:12]}+dirty.{found.changes[:12]}"
    assert checked_out(project, found.snapshot, tmp_path / "tree") == {
        ".gitignore": "ignored*\n", "kept.py": "edited\n", "staged.py": "3\n", "new/über.py": "4\n"
    }  # fmt: skip
    assert repository.find(".", left_out=[project.folder / "runs"]) == found
    assert repository.again(found.ref, found.commit, found.changes) == found


def test_names_and_messages_are_bytes(project: GitProject, tmp_path: Path) -> None:
    """A carriage return in a name or a message is no line's end, and a name needs no encoding."""
    good = project.git("rev-parse", "HEAD")
    project.git("commit", "--quiet", "--allow-empty", "--message", "Fuse\rmore")
    project.write({"a\rb.py": "4\n"})
    Path(os.fsdecode(os.fsencode(project.folder) + b"/\xff\r.py")).write_text("5\n")
    repository = Repository(project.folder)

    found = repository.find(".")

    assert {"a\rb.py", "\udcff\r.py"} < set(checked_out(project, found.snapshot, tmp_path / "tree"))
    assert [one.title for one in repository.line(good, "HEAD")][1:] == ["Fuse\rmore"]


def test_a_folder_in_a_files_place_and_a_repository_inside(project: GitProject, tmp_path: Path) -> None:
    """A file that became a folder is that folder; a repository that only lies there is none of this one's files."""
    (project.folder / "gone.py").unlink()
    project.write({"gone.py/inner.py": "5\n"})
    GitProject(project.folder / "nested").write({"file": ""})

    found = Repository(project.folder).find(".")

    assert set(checked_out(project, found.snapshot, tmp_path / "tree")) == {".gitignore", "kept.py", "gone.py/inner.py"}


def test_folders_left_out_may_be_ignored_or_committed(project: GitProject) -> None:
    """Run folders are no change, whether git ignores them, does not know them, or has some of them."""
    project.commit({"runs/old": "1"})
    project.write({"runs/old": "2", "runs/new": "3", "ignored/x": "4"})
    found = Repository(project.folder).find(".", [project.folder / "runs", project.folder / "ignored"])
    assert found.changes == ""


def test_in_a_git_hook_the_repository_asked_for_is_read(
    project: GitProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook's variables point git at its own repository; they are not followed, and no hook is run."""
    other = GitProject(tmp_path / "other")
    other.commit({"x": ""})
    hook = project.folder / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/hook-ran'\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_DIR", str(other.folder / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other.folder / ".git" / "index"))

    repository = Repository(project.folder)
    commit = repository.find(".").commit
    repository.check_out(commit, tmp_path / "tree")

    assert (tmp_path / "tree" / "kept.py").is_file()
    assert not (tmp_path / "hook-ran").exists()


def test_a_worktree_is_removed_with_its_registration(project: GitProject, tmp_path: Path) -> None:
    """Afterwards git lists the user's own working tree alone, also where the folder had been deleted by hand."""
    repository, tree = Repository(project.folder), tmp_path / "tree"
    repository.check_out("HEAD", tree)
    remove_worktree(tree, project.folder)
    assert not tree.exists()
    assert len(project.git("worktree", "list").splitlines()) == 1

    repository.check_out("HEAD", tree)
    project.git("worktree", "lock", str(tree))
    shutil.rmtree(tree)
    repository.check_out("HEAD", tree)
    assert (tree / "kept.py").is_file()


def test_a_worktree_outlives_its_repository_and_is_still_removed(project: GitProject, tmp_path: Path) -> None:
    """CI removes clones; the cache must not keep their worktrees for ever."""
    Repository(project.folder).check_out("HEAD", tmp_path / "tree")
    (project.folder / ".git").rename(tmp_path / "moved")
    remove_worktree(tmp_path / "tree", project.folder)
    assert not (tmp_path / "tree").exists()


@pytest.mark.parametrize(
    ("ref", "problem"),
    [
        ("nope", "there is no commit nope"),
        ("nope...", "there is no commit nope"),
        ("--all", "'--all' does not name a commit"),
        ("a\nb", "does not name a commit"),
        ("HEAD^{tree}", "there is no commit HEAD^{tree}"),
    ],
)
def test_refs_that_are_no_commits_are_usage_errors(project: GitProject, ref: str, problem: str) -> None:
    """Each is named, and means exit status 2."""
    with pytest.raises(UsageError) as caught:
        Repository(project.folder).find(ref)
    assert problem in str(caught.value)
    assert caught.value.exit_status is ExitStatus.USAGE


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=12))
def test_whatever_is_given_as_a_ref_is_a_commit_or_a_usage_error(project: GitProject, ref: str) -> None:
    """No text reaches git as an option or breaks off with another error."""
    try:
        found = Repository(project.folder).find(ref)
    except UsageError:
        return
    assert found.commit == project.git("rev-parse", "HEAD")


def test_the_branch_here_is_named_where_another_was_asked_for(project: GitProject) -> None:
    """A repository may call its branch otherwise than the one that was typed."""
    project.git("branch", "--move", "trunk")
    with pytest.raises(UsageError, match=r"there is no commit main\n  The branch here is trunk; git branch --all"):
        Repository(project.folder).find("main...HEAD")


def test_a_branch_of_a_remote_is_proposed(project: GitProject, tmp_path: Path) -> None:
    """CI has origin/main and no main: that is what the error says."""
    project.git("branch", "stable")
    clone = GitProject(tmp_path / "clone")
    clone.git("remote", "add", "origin", str(project.folder))
    clone.git("fetch", "--quiet", "origin")
    clone.git("reset", "--quiet", "--hard", "origin/main")
    with pytest.raises(UsageError, match=r"there is no commit stable\n  There is origin/stable\."):
        Repository(clone.folder).find("stable...")


def test_a_shallow_clone_without_the_merge_base_says_what_to_fetch(project: GitProject, tmp_path: Path) -> None:
    """With one commit fetched of each branch they have none in common, and that is the cause named."""
    project.git("switch", "--quiet", "--create", "topic")
    project.commit({"kept.py": "topic\n"})
    project.git("switch", "--quiet", "main")
    project.commit({"gone.py": "main\n"})
    clone = GitProject(tmp_path / "clone")
    clone.git("fetch", "--quiet", "--depth=1", f"file://{project.folder}", "topic:topic", "main:other")
    with pytest.raises(UsageError, match=r"no commit in common in this shallow clone(?s:.*)fetch-depth: 0"):
        Repository(clone.folder).find("topic...other")


def test_a_folder_without_a_repository_and_a_machine_without_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are usage errors that say what is missing."""
    with pytest.raises(UsageError, match="not inside a git working tree"):
        Repository(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="git not found"):
        Repository(tmp_path)


def test_changes_that_git_has_collected_are_not_invented(project: GitProject) -> None:
    """A tree that is gone cannot be built again, and that is not measured, not another tree."""
    with pytest.raises(NotMeasuredError, match="does not have the changes 0000") as caught:
        Repository(project.folder).again("working tree", project.git("rev-parse", "HEAD"), "0" * 40)
    assert caught.value.code == "build-failed"


def test_a_line_follows_first_parents(project: GitProject) -> None:
    """From the good commit to the bad one in order of history; a merge is one commit, and names what it merged."""
    good = project.git("rev-parse", "HEAD")
    project.git("switch", "--quiet", "--create", "topic")
    topic = project.commit({"topic.py": "1\n"})
    project.git("switch", "--quiet", "main")
    second = project.commit({"kept.py": "2\n"})
    project.git("merge", "--quiet", "--no-ff", "-m", "Merge topic", "topic")
    merge, last = project.git("rev-parse", "HEAD"), project.commit({"kept.py": "3\n"})

    line = Repository(project.folder).line(good, "main")
    assert [commit.commit for commit in line] == [good, second, merge, last]
    assert line[2].parents == (second, topic)
    assert line[2].title == "Merge topic"

    with pytest.raises(UsageError, match="came in by a merge") as refused:
        Repository(project.folder).line(topic, "main")
    assert good[:12] in refused.value.remedy


def test_a_line_needs_an_ancestor(project: GitProject) -> None:
    """Branches beside each other, the wrong order and one commit alone are told apart, each with what to do."""
    began = project.git("rev-parse", "HEAD")
    project.git("switch", "--quiet", "--create", "topic")
    project.commit({"kept.py": "topic\n"})
    project.git("switch", "--quiet", "main")
    project.commit({"kept.py": "main\n"})
    repository = Repository(project.folder)

    with pytest.raises(UsageError, match="topic is not an ancestor of main") as beside:
        repository.line("topic", "main")
    assert began[:12] in beside.value.remedy
    with pytest.raises(UsageError, match="other way round"):
        repository.line("main", "main~1")
    with pytest.raises(UsageError, match="are the same commit"):
        repository.line("main", "HEAD")


def test_a_shallow_clone_says_how_to_get_the_rest(project: GitProject, tmp_path: Path) -> None:
    """Where history was cut off between the two, it is not the user who is wrong."""
    good = project.git("rev-parse", "HEAD")
    project.commit({"kept.py": "2\n"})
    project.commit({"kept.py": "3\n"})
    project.git("clone", "--quiet", "--depth=1", f"file://{project.folder}", str(tmp_path / "shallow"))
    project.git("-C", str(tmp_path / "shallow"), "fetch", "--quiet", "--depth=1", "origin", good)

    with pytest.raises(UsageError, match="in this shallow clone") as refused:
        Repository(tmp_path / "shallow").line(good, "main")
    assert "--unshallow" in refused.value.remedy


def test_a_title_is_text_whatever_a_message_holds(project: GitProject) -> None:
    """Bytes that are not UTF-8 are replaced, so that every record can hold the title; it is cut to 72 characters."""
    tree = project.git("rev-parse", "HEAD^{tree}")
    message = project.folder.parent / "message"
    message.write_bytes(b"Fuse \xff\xfe kernels" + b"x" * 99 + b"\n\nBecause.\n")
    project.git("reset", "--quiet", "--hard", project.git("commit-tree", tree, "-p", "HEAD", "-F", str(message)))

    repository = Repository(project.folder)
    title = repository.title("HEAD")
    assert (title[:5], title[-9:], len(title)) == ("Fuse ", "x" * 9, 72)
    assert title.encode()
    assert repository.line("HEAD~1", "HEAD")[1].title == title


def test_only_tracked_files_are_changes(project: GitProject) -> None:
    """New files are none: run folders and notes may be there."""
    repository = Repository(project.folder)
    project.write({"new.py": "1\n"})
    assert not repository.has_changes
    project.write({"kept.py": "2\n"})
    assert repository.has_changes
