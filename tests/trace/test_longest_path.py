"""The longest path, and what each part of it would gain, against every path of a small network."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfgate.trace.longest_path import Network, longest_path

PARTS = 4


@st.composite
def networks(draw: st.DrawFn) -> tuple[Network, int]:
    """Up to eight nodes, numbered in any order, edges from earlier to later ones, and a node with which it ends."""
    count = draw(st.integers(2, 8))
    network = Network(count)
    numbered = [0, *draw(st.permutations(range(1, count)))]
    for head in range(1, count):
        for tail in range(head):
            for _ in range(draw(st.integers(0, 2))):
                time, part = draw(st.integers(0, 9)), draw(st.integers(0, PARTS - 1))
                network.edge(numbered[tail], numbered[head], time, part)
    return network, numbered[draw(st.integers(1, count - 1))]


def every_length(network: Network, end: int, without: int | None = None) -> list[int]:
    """The lengths of all paths to a node, from whichever node; a part may be taken to take no time."""
    lengths = [0]
    for tail, head, time, part in zip(network.tails, network.heads, network.times, network.parts, strict=True):
        if head == end:
            lengths += [(0 if part == without else time) + length for length in every_length(network, tail, without)]
    return lengths


@given(networks())
def test_it_is_the_longest_of_all_paths(case: tuple[Network, int]) -> None:
    """No path is longer, its edges follow one another to its end, and they add up to its length."""
    network, end = case
    found = longest_path(network, end)
    assert found.length == max(every_length(network, end)) == sum(network.times[edge] for edge in found.edges)
    followed = [network.heads[edge] for edge in found.edges[:-1]]
    assert followed == [network.tails[edge] for edge in found.edges[1:]]
    assert not found.edges or network.heads[found.edges[-1]] == end


@given(networks())
def test_a_gain_is_what_all_paths_lose(case: tuple[Network, int]) -> None:
    """For each part on the path, and no part that is not on it would gain anything."""
    network, end = case
    found = longest_path(network, end)
    for part in range(PARTS):
        assert found.gains.get(part, 0) == found.length - max(every_length(network, end, part))


def test_many_parts_are_worked_out_in_turns() -> None:
    """A chain of more parts than fit at once: each gains its own time."""
    network = Network()
    for part in range(3000):
        network.edge(network.nodes - 1, network.node(), part, part)
    found = longest_path(network, network.nodes - 1)
    assert found.gains == {part: part for part in range(1, 3000)}


def test_edges_in_a_circle_are_left_out() -> None:
    """Two nodes at one time that wait for each other hold nobody up."""
    network = Network()
    first, second, end = (network.node() for _ in range(3))
    network.edge(0, end, 5, 0)
    network.edge(first, second, 0, 1)
    network.edge(second, first, 0, 1)
    assert longest_path(network, end).length == 5
