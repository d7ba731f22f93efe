"""GitHub's REST API over the standard library: pages, limits of rate, and refusals that say what they mean."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlencode, urljoin, urlsplit
from urllib.request import HTTPErrorProcessor, Request, build_opener

from pydantic import BaseModel, Field, ValidationError

from perfgate.errors import PerfgateError
from perfgate.machine.json_text import ANSWER, parse_json
from perfgate.machine.versioned_json import first_problem

TIMEOUT_S = 30.0
ATTEMPTS = 3
PATIENCE_S = 90.0  # no longer is waited for a limit of rate: a comment is not worth a runner's hour
PAGES = 100
REDIRECTS = (301, 302, 307, 308)
CHUNK_BYTES = 1024 * 1024


class ApiError(PerfgateError):
    """GitHub refused, or could not be reached.

    Args:
        text: What GitHub said.
        status: The HTTP status; 0 where there was no answer.
        more: See :class:`~perfgate.errors.PerfgateError`.
    """

    def __init__(self, text: str, status: int = 0, **more: str) -> None:
        super().__init__(text, **more)
        self.status = status


Sha = Annotated[str, Field(pattern="^[0-9a-f]{40}([0-9a-f]{24})?$")]


class Repository(BaseModel):
    """A repository; ``full_name`` is ``owner/name``."""

    full_name: str = ""
    default_branch: str = "main"


class Tip(BaseModel):
    """The branch and commit at one end of a pull request."""

    ref: str
    sha: Sha


class PullRequest(BaseModel):
    """A pull request, as events and answers have it."""

    number: int
    state: str
    base: Tip
    head: Tip


class MergeGroup(BaseModel):
    """What the merge queue tests together: the branch, and the commit that it is compared with."""

    base_ref: str
    base_sha: Sha


class WorkflowRun(BaseModel):
    """A workflow run, as events and answers have it."""

    id: int  # GitHub's number
    event: str  # name of the event that started it
    head_sha: Sha  # commit that it ran at
    head_branch: str | None = None  # branch that it ran on; anybody may have named it
    # Where its commit, and with that its workflow, comes from; `None` where that is gone
    head_repository: Repository | None
    path: str = ""  # file of its workflow, perhaps with `@` and a ref
    conclusion: str | None = None  # how it ended; `None` before that

    @property
    def origin(self) -> str:
        """``owner/name`` of the repository that its commit comes from; empty where that is gone."""
        return self.head_repository.full_name if self.head_repository else ""


_Model = TypeVar("_Model", bound=BaseModel)


class Api:
    """The API of one GitHub server.

    Args:
        url: Its root, ``https://api.github.com`` or that of a server of your own.
        token: Sent with every request to this server and with none to another; may be empty.
    """

    def __init__(self, url: str, token: str) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ApiError(f"{url!r} is not an API address")
        self._url = url.rstrip("/")
        self._token = token
        self._opener = build_opener(_NoRedirect)

    def get(self, model: type[_Model], path: str) -> _Model:
        """What of the answer to a GET is needed, as a model; the answer may hold more.

        Raises:
            ApiError: GitHub refused, did not answer, or answered something else.
        """
        return _understood(model, self._json("GET", f"{self._url}{path}")[0], path)

    def pages(self, model: type[_Model], path: str, key: str = "", **query: str) -> Iterator[_Model]:
        """The items of a list that comes in pages; ``key`` names the list where it is within an object.

        Raises:
            ApiError: GitHub refused, a page leads to another server, or there is no end of them.
        """
        url = f"{self._url}{path}?{urlencode({'per_page': 100, **query})}"
        for _ in range(PAGES):
            content, headers = self._json("GET", url)
            items = content.get(key) if key and isinstance(content, dict) else content
            if not isinstance(items, list):
                raise ApiError("expected a list", where=path)
            yield from (_understood(model, item, path) for item in items)
            following = re.search(r'<([^>]+)>;\s*rel="next"', headers.get("Link", ""))
            if following is None:
                return
            url = following[1]
            if not url.startswith(f"{self._url}/"):
                raise ApiError(f"the next page is on another server: {url}", where=path)
        raise ApiError(f"more than {PAGES} pages", where=path)

    def make(self, model: type[_Model], path: str, content: Any) -> _Model:
        """Make something by a POST, which is never sent again where it may have arrived; what GitHub says of it.

        Raises:
            ApiError: GitHub refused, did not answer, or answered something else.
        """
        return _understood(model, self._json("POST", f"{self._url}{path}", content)[0], path)

    def send(self, method: str, path: str, content: Any = None) -> None:
        """Send a request whose answer is not needed; a POST that may have arrived is never sent again.

        Raises:
            ApiError: GitHub refused, or did not answer.
        """
        self._json(method, f"{self._url}{path}", content)

    def download(self, path: str, file: Path, limit_bytes: int) -> None:
        """Write what GitHub redirects this path to into a file; the token stays with GitHub.

        Raises:
            ApiError: GitHub refused, or it broke off, is larger than allowed, or cannot be written; the file is gone
                then.
        """
        with self._open("GET", f"{self._url}{path}") as answer:
            target = answer.headers.get("Location")
            if target is None:
                _write(answer, file, limit_bytes)
                return
        target = urljoin(f"{self._url}{path}", target)
        if urlsplit(target).scheme != urlsplit(self._url).scheme:
            raise ApiError(f"leads to {urlsplit(target).scheme}:", where=path)
        with self._open("GET", target, ours=False) as answer:
            _write(answer, file, limit_bytes)

    def _json(self, method: str, url: str, content: Any = None) -> tuple[Any, Message]:
        with self._open(method, url, None if content is None else json.dumps(content).encode()) as answer:
            try:
                body = answer.read((ANSWER.mib << 20) + 1)
                return (parse_json(body, ANSWER) if body else None), answer.headers
            except (HTTPException, OSError) as error:
                raise ApiError(f"its answer broke off: {error}", where=_path_of(url)) from error
            except ValueError as error:
                raise ApiError(f"its answer cannot be read: {error}", where=_path_of(url)) from error

    @contextlib.contextmanager
    def _open(self, method: str, url: str, body: bytes | None = None, *, ours: bool = True) -> Iterator[HTTPResponse]:
        headers = {"Accept": "application/vnd.github+json", "User-Agent": "perfgate"}
        headers |= {"X-GitHub-Api-Version": "2022-11-28", "Content-Type": "application/json"} if ours else {}
        headers |= {"Authorization": f"Bearer {self._token}"} if ours and self._token else {}
        request = Request(url, data=body, headers=headers, method=method)  # noqa: S310 (the scheme was checked)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = self._opener.open(request, timeout=TIMEOUT_S)
            except HTTPError as error:
                with error:
                    _wait(_refusal_wait_s(error, method, attempt), attempt, _refused(error, url))
                continue
            except (OSError, HTTPException) as error:  # URLError is an OSError; an answer that breaks off is a bare one
                reason = getattr(error, "reason", error)
                failed = ApiError(f"cannot be reached: {reason}", where=_path_of(url))
                _wait(None if method == "POST" else float(attempt), attempt, failed)
                continue
            with answer:
                yield answer
            return


def _understood(model: type[_Model], content: Any, path: str) -> _Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ApiError(f"its answer cannot be read: {first_problem(error)}", where=path) from error


class _NoRedirect(HTTPErrorProcessor):
    """A redirect is an answer: urllib would send the token on to whatever server it names."""

    def http_response(self, request: Request, response: HTTPResponse) -> Any:
        """Follow nothing; an answer of the kind of redirects that leads nowhere is a refusal."""
        if response.status // 100 != 3:  # noqa: PLR2004 (redirects)
            return super().http_response(request, response)
        if response.status in REDIRECTS:
            return response
        raise HTTPError(request.full_url, response.status, response.reason, response.headers, response)

    https_response = http_response


def _wait(wait_s: float | None, attempt: int, failed: ApiError) -> None:
    if wait_s is None or attempt == ATTEMPTS or wait_s > PATIENCE_S:
        raise failed
    time.sleep(wait_s)


def _refusal_wait_s(error: HTTPError, method: str, attempt: int) -> float | None:
    """How long to wait before another attempt; ``None`` where none would help.

    GitHub's limits of rate are a 403 or 429 with ``retry-after``, or with nothing remaining until a reset ("Rate limits
    for the REST API"). What was refused so has not been done, so a POST may be sent again.
    """
    if error.code in (403, 429):
        after, reset = error.headers.get("retry-after", ""), error.headers.get("x-ratelimit-reset", "")
        if after.isdecimal():
            return float(after)
        if error.headers.get("x-ratelimit-remaining") == "0" and reset.isdecimal():
            server_s = 0.0  # by the server's own clock, in which it says when a limit ends
            with contextlib.suppress(ValueError):
                server_s = parsedate_to_datetime(error.headers.get("Date", "")).timestamp()
            return max(1.0, float(reset) - server_s)
        return float(10 * attempt) if error.code == 429 else None  # noqa: PLR2004 (too many requests)
    return float(attempt) if error.code >= 500 and method != "POST" else None  # noqa: PLR2004 (the server's fault)


def _refused(error: HTTPError, url: str) -> ApiError:
    try:
        content = parse_json(error.read(64 * 1024))
        message = str(content.get("message", "")) if isinstance(content, dict) else ""
    except (ValueError, OSError, HTTPException):
        message = ""
    return ApiError(f"GitHub answered {error.code} {message or error.reason}"[:500], error.code, where=_path_of(url))


def _path_of(url: str) -> str:
    """The path alone: the query of a redirect may hold a signature."""
    return urlsplit(url).path


def _write(answer: HTTPResponse, file: Path, limit_bytes: int) -> None:
    left = limit_bytes
    with contextlib.ExitStack() as undo:
        undo.callback(file.unlink, missing_ok=True)
        try:
            with file.open("wb") as stream:
                while left >= 0 and (chunk := answer.read(CHUNK_BYTES)):
                    left -= len(chunk)
                    stream.write(chunk)
        except (HTTPException, OSError) as error:
            raise ApiError(f"the download broke off: {error}", where=file.name) from error
        if left < 0:
            raise ApiError(f"is larger than {limit_bytes} bytes", where=file.name)
        if missing := answer.length:  # read(n) takes a connection that was closed early for the end
            raise ApiError(f"the download broke off: {missing} bytes less", where=file.name)
        undo.pop_all()
