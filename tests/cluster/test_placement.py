"""What a cell needs of a node, and what is said where no node has it."""

from __future__ import annotations

import pytest

from perfgate.cluster.cluster_run import Need, Node, need_of

GIB = 2.0**30


def node(name: str, cores: float = 4.0, memory: float = 8.0, **more: float) -> Node:
    """A node; memory in GiB."""
    return Node(f"id of {name}", name, {"CPU": cores, "memory": memory * GIB, **more})


HEAD = node("head", cores=0.0)


@pytest.mark.parametrize(
    ("nodes", "cores", "memory"),
    [
        ([HEAD, node("a"), node("b")], 4.0, 4.8),
        # Which memory each counts differs a little.
        ([node("a", memory=8.0), node("b", memory=7.9)], 4.0, 4.8),
        # Most cores and most memory are not on one node.
        ([node("a", cores=16.0, memory=4.0), node("b", cores=2.0, memory=64.0)], 16.0, 2.4),
        # The size that most nodes hold once: the large one would hold two.
        ([node("a"), node("b"), node("large", cores=64.0, memory=256.0)], 4.0, 4.8),
    ],
)
def test_a_cell_of_the_cpu_has_a_node_to_itself(nodes: list[Node], cores: float, memory: float) -> None:
    """Its need is that of a node which is there, so that some node can hold it."""
    need = need_of("", 1, nodes)
    assert (need.cores, need.gpus, round(need.memory / GIB, 3)) == (cores, 0, memory)
    assert need.lack(nodes) == ""


def test_gpus_are_whole_and_of_the_class() -> None:
    """A cell has as many as its largest engine takes, on nodes of its class alone."""
    nodes = [node("a", GPU=8.0), node("b", GPU=4.0, h200=1.0)]
    assert need_of("h200", 2, nodes) == Need("h200", cores=1.0, gpus=2)
    assert need_of("h200", 2, nodes).lack(nodes) == ""
    assert need_of("h200", 2, []) == Need("h200", cores=1.0, gpus=2)


@pytest.mark.parametrize(
    ("need", "nodes", "text"),
    [
        (
            Need("h200", 1.0, gpus=8),
            [HEAD, node("a", GPU=4.0, h200=1.0)],
            (
                "waits for a node: it needs 8 GPUs, 1 core on a node with the resource h200, and of these there are: "
                "a (4 GPUs, 4 cores, 8.0 GiB of memory); other nodes: 1"
            ),
        ),
        (
            Need("h200", 1.0, gpus=1),
            [node("a")],
            (
                "waits for a node: it needs 1 GPU, 1 core on a node with the resource h200, and of these there are: "
                "none; other nodes: 1"
            ),
        ),
        (
            Need("", 8.0, memory=16 * GIB),
            [node(f"n{number}") for number in range(10)],
            "waits for a node: it needs 8 cores, 16.0 GiB of memory, and of these there are: "
            + ", ".join(f"n{number} (4 cores, 8.0 GiB of memory)" for number in range(8))
            + " and 2 more",
        ),
    ],
)
def test_what_no_node_can_hold(need: Need, nodes: list[Node], text: str) -> None:
    """The sentence has what is needed and what is there."""
    assert need.lack(nodes) == text
