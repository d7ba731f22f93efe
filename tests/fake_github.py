"""A GitHub that speaks as much of the REST API as perfgate asks for, on a port of this machine."""

from __future__ import annotations

import io
import json
import re
import socket
import struct
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

REPOSITORY = "owner/engine"
BOT = "github-actions[bot]"
TOKEN = "token-of-the-job"  # noqa: S105 (of a server that is none)


@dataclass
class Refusal:
    """An answer in place of the real one, for so many requests that match."""

    method: str
    path: str
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = "Resource not accessible by integration"
    times: int = 1_000


@dataclass
class FakeGitHub:
    """What the server holds; a test reads and changes it as it likes.

    Args:
        page: Items of a page at most.
        pulls: Pull requests by number.
        files: Names of changed files by number; ``old => new`` is one that was renamed.
        comments: Comments by number of the pull request.
        runs: Workflow runs by number.
        artifacts: Artifacts as GitHub lists them, with the bytes of the archive under ``archive``.
        protected: Names of protected branches.
        refs: Commits by name of the reference.
        objects: Blobs, trees and commits as they were sent.
        refusals: Tried before anything else.
        requests: Method and path of every request, in order.
        leaks: Tokens that came to where archives lie, which must never happen.
        broken: How downloads of archives break off half-way: ``reset``, ``closed``, or not.
    """

    page: int = 2
    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    files: dict[int, list[str]] = field(default_factory=dict)
    comments: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    runs: dict[int, dict[str, Any]] = field(default_factory=dict)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    protected: set[str] = field(default_factory=set)
    refs: dict[str, str] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    broken: str = ""
    url: str = ""
    ids: int = 1000

    def next_id(self) -> int:
        """A number that nothing else has."""
        self.ids += 1
        return self.ids

    def add_comment(self, number: int, body: str, login: str = BOT) -> dict[str, Any]:
        """A comment that is there already."""
        item = {"id": self.next_id(), "body": body, "user": {"login": login}}
        self.comments.setdefault(number, []).append(item)
        return item

    def add_artifact(self, name: str, content: Mapping[str, bytes] | bytes, **more: Any) -> dict[str, Any]:
        """An artifact of run 7 at commit ``a`` * 40 of this repository."""
        archive = content if isinstance(content, bytes) else zipped(content)
        item = {
            "id": self.next_id(), "name": name, "size_in_bytes": len(archive), "expired": False,
            "created_at": f"2026-01-01T00:00:{self.ids % 60:02}Z", "archive": archive, "run_id": 7,
            "workflow_run": {"id": 7, "head_sha": "a" * 40, "repository_id": 1, "head_repository_id": 1}, **more,
        }  # fmt: skip
        self.artifacts.append(item)
        return item

    def answer(  # noqa: PLR0911 (a table)
        self, method: str, path: str, query: Mapping[str, list[str]], content: Any
    ) -> Any:
        """What the API says; a list is sent in pages.

        Raises:
            KeyError: There is no such thing.
        """
        path = path.removeprefix(f"/repos/{REPOSITORY}")
        if found := re.fullmatch(r"/pulls/(\d+)", path):
            self.pulls[int(found[1])] |= content or {}
            return listed(int(found[1]), self.pulls[int(found[1])])
        if found := re.fullmatch(r"/actions/runs/(\d+)", path):
            return self.runs[int(found[1])]
        if found := re.fullmatch(r"/branches/(.+)", path):
            return {"name": found[1], "protected": found[1] in self.protected}
        if found := re.fullmatch(r"/pulls/(\d+)/files", path):
            names = [name.rpartition(" => ") for name in self.files.get(int(found[1]), [])]
            return [{"filename": new} | ({"previous_filename": old} if old else {}) for old, _, new in names]
        if found := re.fullmatch(r"/issues/(\d+)/comments", path):
            if method == "POST":
                return self.add_comment(int(found[1]), content["body"])
            return self.comments.get(int(found[1]), [])
        if found := re.fullmatch(r"/issues/comments/(\d+)", path):
            return self._change(int(found[1]), method, content)
        if path.startswith("/git/") or path == "/pulls":
            return self._write(method, path, content)
        if found := re.fullmatch(r"/actions/(?:runs/(\d+)/)?artifacts", path):
            found_artifacts = [
                {key: value for key, value in item.items() if key not in ("archive", "run_id")}
                for item in self.artifacts
                if item["name"] in query.get("name", [item["name"]])
                and item["run_id"] == int(found[1] or item["run_id"])
            ]
            return {"artifacts": found_artifacts}
        raise KeyError(path)

    def _write(self, method: str, path: str, content: Any) -> Any:
        """Objects of git, kept by a number for a digest; references; pull requests of ours."""
        if path == "/pulls":
            if method == "GET":
                return [listed(number) for number, pull in self.pulls.items() if "title" in pull]
            self.pulls[number := self.next_id()] = content
            return listed(number)
        if found := re.fullmatch(r"/git/(ref|refs)/(heads/.+)", path):
            if method == "PATCH":
                self.refs[found[2]] = content["sha"]
            return {"sha": self.refs[found[2]]}
        if path == "/git/refs":
            self.refs[content["ref"].removeprefix("refs/")] = content["sha"]
            return {}
        if method == "GET":  # a commit
            return {"tree": {"sha": "base-tree"}}
        self.objects[sha := f"{path.removeprefix('/git/')}-{self.next_id()}"] = content
        return {"sha": sha}

    def _change(self, comment_id: int, method: str, content: Any) -> Any:
        for listed in self.comments.values():
            for item in listed:
                if item["id"] == comment_id:
                    if method == "DELETE":
                        listed.remove(item)
                        return None
                    item["body"] = content["body"]
                    return item
        raise KeyError(comment_id)


def listed(number: int, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A pull request as GitHub has it in events and answers; what a test says of its ends goes before."""
    known = {} if known is None or "title" in known else known
    ends = {end: {"ref": end, "sha": "e" * 40} | known.get(end, {}) for end in ("base", "head")}
    return {"state": "open", **known, "number": number, **ends}


def zipped(content: Mapping[str, bytes]) -> bytes:
    """An archive of these files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return stream.getvalue()


@contextmanager
def serving(github: FakeGitHub) -> Iterator[FakeGitHub]:
    """Serve it while the block lasts; its address is in ``url``."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.github = github
    github.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield github
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    github: FakeGitHub


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def _serve(self) -> None:
        github, split = self.server.github, urlsplit(self.path)
        github.requests.append((self.command, split.path))
        length = int(self.headers.get("Content-Length") or 0)
        content = json.loads(self.rfile.read(length)) if length else None
        for refusal in github.refusals:
            if refusal.times and refusal.method == self.command and re.fullmatch(refusal.path, split.path):
                refusal.times -= 1
                self._send(refusal.status, json.dumps({"message": refusal.message}).encode(), refusal.headers)
                return
        if found := re.fullmatch(r"/blob/(\d+)", split.path):
            github.leaks += [self.headers["Authorization"]] if "Authorization" in self.headers else []
            archive = next(a["archive"] for a in github.artifacts if a["id"] == int(found[1]))
            self._break_off(archive) if github.broken else self._send(200, archive, {})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(401, b'{"message": "Bad credentials"}', {})
        elif found := re.fullmatch(r".*/actions/artifacts/(\d+)/zip", split.path):
            self._send(302, b"", {"Location": f"{github.url}/blob/{found[1]}"})
        else:
            self._answer(split.path, parse_qs(split.query), content)

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 (names that http.server calls)

    def _answer(self, path: str, query: Mapping[str, list[str]], content: Any) -> None:
        github = self.server.github
        try:
            found = github.answer(self.command, path, query, content)
        except KeyError:
            self._send(404, b'{"message": "Not Found"}', {})
            return
        items = found.get("artifacts") if isinstance(found, dict) else found
        if not isinstance(items, list):
            self._send(200, json.dumps(found).encode(), {})
            return
        number = int(query.get("page", ["1"])[0])
        shown, headers = items[(number - 1) * github.page : number * github.page], {}
        if number * github.page < len(items):
            name = f"&name={query['name'][0]}" if "name" in query else ""
            headers["Link"] = f'<{github.url}{path}?page={number + 1}{name}>; rel="next", <x>; rel="last"'
        self._send(200, json.dumps({"artifacts": shown} if isinstance(found, dict) else shown).encode(), headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _break_off(self, body: bytes) -> None:
        """Promise all, send half, and end the connection in good order or by a reset, which lingering for 0 s makes."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        if self.server.github.broken == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()
            self.wfile.close()
        self.connection.close()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
