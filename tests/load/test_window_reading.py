"""From the client's stamps to an iteration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hand_made import trial
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import recorded

from perfgate.errors import NotMeasuredError
from perfgate.judge.cell_verdict import evidence_of_run
from perfgate.load.exchange import Answer, Answers
from perfgate.load.shape import Load
from perfgate.load.window_reading import WindowAnswer, evenly, read_window
from perfgate.metrics.catalogue import trial_value
from perfgate.report.record_charts import iterations_chart, tokens_chart

MS = 1_000_000


def answered(number: int = 0, **changes: Any) -> Answer:
    """A request due at 100 ms whose four tokens came in events of 1, 2 and 1 at 110, 130 and 135 ms."""
    plain: dict[str, Any] = {
        "number": number, "scheduled_ns": 100 * MS, "sent_ns": 100 * MS, "token_ns": (110 * MS, 130 * MS, 135 * MS),
        "token_counts": (1, 2, 1), "end_ns": 136 * MS, "finish": "length",
    }  # fmt: skip
    return Answer.model_validate(plain | changes)


def window(*answers: Answer, **changes: Any) -> dict[str, Any]:
    """What a driver returns of these answers."""
    whole = Answers(begin_ns=90 * MS, end_ns=136 * MS, cpu_ns=0, answers=answers)
    return (
        WindowAnswer(asked=(4,) * len(answers), limit_ns=10**9, answers=whole).model_copy(update=changes).model_dump()
    )


def test_times_run_from_when_a_request_was_due() -> None:
    """However late it was sent; an event of two tokens halves the gap before it, and gives two values."""
    late = answered(scheduled_ns=60 * MS, sent_ns=60 * MS)

    read = read_window(window(answered(), late))

    assert (read.ttft_ns, read.e2e_ns) == ((10 * MS, 50 * MS), (35 * MS, 75 * MS))
    assert read.itl_ns == tuple(sorted([10 * MS, 10 * MS, 5 * MS] * 2))
    assert (read.lengths, read.output_tokens, read.elapsed_ns, read.begin_ns) == ((4, 4), 0, 46 * MS, 90 * MS)


def test_cancelled_requests_have_no_times() -> None:
    """They load the server, and the tokens that they got are part of what it put out."""
    gone = answered(1, finish="cancelled", token_ns=(110 * MS,), token_counts=(1,))
    read = read_window(window(answered(), gone))
    assert (read.lengths, read.generated) == ((4,), 5)
    assert trial_value("output_throughput", trial(0, 0, "base", iterations=(read,))) == pytest.approx(5 / 0.046)
    assert trial_value("request_throughput", trial(0, 0, "base", iterations=(read,))) == pytest.approx(1 / 0.046)
    with pytest.raises(NotMeasuredError, match="every request was cancelled"):
        read_window(window(gone))


def test_a_server_that_drops_requests_is_told() -> None:
    """One may have met the end of an idle connection, and one in a hundred; more were dropped for what they asked."""
    for dropped, of, fine in ((1, 2, True), (2, 2, False), (2, 200, True), (3, 200, False)):
        came = window(*(answered(number, sent_twice=number < dropped) for number in range(of)))
        if fine:
            assert len(read_window(came).lengths) == of
            continue
        with pytest.raises(NotMeasuredError, match=f"dropped {dropped} of {of} requests") as caught:
            read_window(came)
        assert caught.value.code == "request-failed"


def test_output_held_to_a_grammar_may_stop() -> None:
    """Such a request may be shorter than asked for, others of the same window may not."""
    short = answered(finish="stop", token_ns=(110 * MS,), token_counts=(1,))
    assert read_window(window(short, may_stop=(0,))).lengths == (1,)
    assert read_window(window(short, may_stop=True)).lengths == (1,), "a timeline of an older perfgate"
    with pytest.raises(NotMeasuredError, match="request 0 ended by 'stop'"):
        read_window(window(short, may_stop=(1,)))


@pytest.mark.parametrize(
    ("changes", "more", "code"),
    [
        ({"error": "HTTP 500", "finish": ""}, {}, "engine-failed"),
        ({"error": "no end", "finish": "", "end_ns": 100 * MS + 10**9}, {}, "engine-failed"),
        ({"error": "no end", "finish": "", "sent_ns": None, "end_ns": 100 * MS + 10**9}, {}, "engine-failed"),
        ({"error": "connection lost", "finish": ""}, {"ended": "was ended by SIGKILL"}, "engine-failed"),
        ({"finish": "stop"}, {}, "request-failed"),
        ({"token_counts": (1, 1, 1)}, {}, "request-failed"),
        ({"token_ns": (), "token_counts": ()}, {}, "request-failed"),
        ({"sent_ns": 101 * MS}, {}, "client-late"),
        ({}, {"asked": (4, 4)}, "engine-failed"),
        ({}, {"answers": 7}, "engine-failed"),
    ],
)
def test_what_does_not_count_has_a_code(changes: dict[str, Any], more: dict[str, Any], code: str) -> None:
    """Whatever is wrong with one request, or with the whole, spoils the window."""
    with pytest.raises(NotMeasuredError) as caught:
        read_window(window(answered(**changes)) | more)
    assert caught.value.code == code


def test_answers_that_were_read_late_do_not_count() -> None:
    """Their times are the client's; those of versions that did not look do."""
    found = window(answered())
    read_window(found)
    read_window(found | {"answers": found["answers"] | {"reading_ns": 2 * MS}})
    with pytest.raises(NotMeasuredError, match=r"3\.000 ms after they came") as caught:
        read_window(found | {"answers": found["answers"] | {"reading_ns": 3 * MS}})
    assert caught.value.code == "client-late"


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=300), st.integers(2, 50))
def test_values_are_left_out_evenly(values: list[int], most: int) -> None:
    """Never more than asked for, in order, with the smallest and the largest."""
    ordered = sorted(values)
    kept = evenly(ordered, most)
    assert len(kept) == min(most, len(values))
    assert list(kept) == sorted(kept)
    assert (kept[0], kept[-1]) == (ordered[0], ordered[-1])
    assert {*kept} <= {*ordered}


def test_a_window_of_load_is_no_timeline() -> None:
    """Gaps between tokens that a server's record keeps by size are shown as that, and windows are called windows."""
    measured = recorded("pass")
    assert measured.run is not None
    (kept,) = measured.records.values()
    evidence = evidence_of_run(measured.run, kept.cell, kept)
    loaded = replace(
        evidence,
        cell=evidence.cell.model_copy(
            update={
                "engine": evidence.cell.engine.model_copy(update={"driver": "server"}),
                "workload": Load.model_validate({"arrival": {"poisson": 4}, "requests": 60}),
            }
        ),
    )

    titles = [chart.title for chart in (tokens_chart(loaded), iterations_chart(loaded, None)) if chart]
    assert titles == ["Gaps between tokens of one window", "Windows of every trial"]
