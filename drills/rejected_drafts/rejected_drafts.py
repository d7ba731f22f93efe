"""Plant: each step verifies drafts of which none is accepted.

It needs ``speculative_config`` without asynchronous scheduling, where the scheduler is told the drafts. Whatever was
proposed, each request gets a full row of them, made of a token that is not its last: a model that decodes greedily
hardly ever takes it. vLLM calls :func:`register` through the entry point; an error in it ends the engine, while one at
import would only be logged.
"""

from __future__ import annotations

import dataclasses
from functools import wraps
from typing import Any

MARK = "_perfgate_rejected_drafts"


def register() -> None:
    """Patch ``Scheduler``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such class or method.
    """
    try:
        from vllm.v1.core.sched.scheduler import Scheduler

        construct, update = Scheduler.__init__, Scheduler.update_draft_token_ids
    except (ImportError, AttributeError) as error:
        raise RuntimeError("rejected_drafts: this vLLM has no Scheduler.update_draft_token_ids to patch") from error
    if getattr(update, MARK, False):
        return

    @wraps(construct)
    def with_drafts(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        if not self.num_spec_tokens or self.vllm_config.scheduler_config.async_scheduling:
            raise RuntimeError("rejected_drafts: needs speculative_config, and async_scheduling: false")

    @wraps(update)
    def never_accepted(self: Any, drafts: Any, *args: Any, **kwargs: Any) -> Any:
        rows = [[other_token(self.requests.get(name))] * self.num_spec_tokens for name in drafts.req_ids]
        return update(self, dataclasses.replace(drafts, draft_token_ids=rows), *args, **kwargs)

    setattr(never_accepted, MARK, True)
    Scheduler.__init__, Scheduler.update_draft_token_ids = with_drafts, never_accepted


def other_token(request: Any) -> int:
    """The first id or the second: whichever is not the last token, so that a model which repeats itself rejects it."""
    return int(request is not None and request.all_token_ids[-1] == 0)
