"""What is read of a server's own counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.load.server_http import MOST_TEXT, growth, kv_token_capacity, kv_use_ppm, read_metrics
from perfgate.load.windows import _added

BEFORE = b"""\
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
vllm:num_preemptions_total{engine="1",model_name="m"} 1.0
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{le="0.3",engine="0"} 1.0
vllm:request_queue_time_seconds_sum{engine="0"} 0.25
vllm:request_queue_time_seconds_count{engine="0"} 10
vllm:prefix_cache_hits_total{engine="0"} 7
vllm:spec_decode_num_draft_tokens_total{engine="0"} 90
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 30
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.125
vllm:cache_config_info{block_size="128",num_gpu_blocks="64",engine="0"} 1.0
"""


def test_counters_are_added_over_engines_and_subtracted() -> None:
    """What is missing on one side, or ran backwards because the server started anew, is left out."""
    after = BEFORE.replace(b"} 3.0", b"} 5.0").replace(b"0.25", b"0.75").replace(b"} 10\n", b"} 20\n")
    after = after.replace(b'hits_total{engine="0"} 7', b'hits_total{engine="0"} 6')
    after = after.replace(b'draft_tokens_total{engine="0"} 90', b'draft_tokens_total{engine="0"} 120')
    after = after.replace(b'accepted_tokens_total{engine="0"} 30', b'accepted_tokens_total{engine="0"} 45')

    assert growth(read_metrics(BEFORE), read_metrics(after)) == {
        "preemptions": 2, "queue_ns": 500_000_000, "queued": 10, "drafts": 30, "drafts_accepted": 15,
    }  # fmt: skip


def test_a_figure_that_a_window_lacks_is_not_known() -> None:
    """Preemptions of the other windows would pass for all there were."""
    assert _added([{"preemptions": 3, "queued": 4}, {"queued": 5}]) == {"queued": 9}
    assert _added([]) == {}


@pytest.mark.parametrize(
    "line",
    [
        b"vllm:kv_cache_usage_perc 1" + b"0" * 500,
        b"vllm:cache_config_info{%s} 1" % b",".join(b'l%d="x"' % n for n in range(100_000)),
        b"vllm:kv_cache_usage_perc{",
    ],
)
def test_a_line_that_cannot_be_read(line: bytes) -> None:
    """The server's figures are missing then, at once; a line that nobody asks for harms none."""
    assert read_metrics(BEFORE + line) == {}
    assert read_metrics(BEFORE + b"other_" + line) == read_metrics(BEFORE)


def test_the_cache_of_a_server() -> None:
    """Its size in tokens, and the share of the fullest engine's that is in use."""
    scrape = read_metrics(BEFORE)
    assert (kv_token_capacity(scrape), kv_use_ppm(scrape)) == (128 * 64, 500_000)


def test_what_is_not_of_this_format_tells_nothing() -> None:
    """Nor does what is too large: the rest of a trial counts all the same."""
    for text in (b"", b"<html>no</html>", b"a{ 1", b"x" * (MOST_TEXT + 1), b"vllm:num_preemptions_total NaN"):
        scrape = read_metrics(text)
        assert growth(scrape, scrape) == {}
        assert (kv_token_capacity(scrape), kv_use_ppm(scrape)) == (None, None)


@given(
    st.lists(st.sampled_from([*BEFORE.splitlines(), b"{", b'"', b"# TYPE", b"\xff", b" 1e400", b" nan"]), max_size=20)
)
def test_a_damaged_text_never_fails(lines: list[bytes]) -> None:
    """It tells what can be read of it, or nothing."""
    for text in (b"\n".join(lines), b"".join(lines)):
        scrape = read_metrics(text)
        assert all(value >= 0 for value in growth(read_metrics(BEFORE), scrape).values())
        assert kv_use_ppm(scrape) is None or 0 <= (kv_use_ppm(scrape) or 0) <= 1_000_000
        kv_token_capacity(scrape)
