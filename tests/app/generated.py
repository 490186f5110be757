"""Random topologies, and their text by the grammar of Kafka Streams."""

from hypothesis import strategies as st

from kstreams_assets.app.topology import Node, Processor, Sink, Source, SubTopology, Topology

# Anything the Processor API accepts, apart from what the grammar itself cannot tell apart: a list
# separator inside a name, a name that is "none", spaces at the ends.
_names = st.text(alphabet=st.sampled_from("abXY019._-,:()[]$/@ "), min_size=1, max_size=12).filter(
    lambda name: ", " not in name and name != "none" and name == name.strip()
)
_topics = st.text(alphabet="abcXYZ09._-", min_size=1, max_size=8)
_stores = st.text(alphabet="abcXYZ09.-", min_size=1, max_size=6)
_patterns = st.sampled_from(["a.*", "(eu|us)-[a-z]+", "[a-z]+\\.x", "x (topics y)", "(a)|[b]*"])
_extractors = st.sampled_from(["com.acme.Route", "by header (fallback)", "Router[a, b]"])


@st.composite
def _blocks(draw: st.DrawFn, id_: int) -> SubTopology:
    names = draw(st.lists(_names, min_size=2, max_size=7, unique=True))
    if draw(st.booleans()) and len(names) == 2:
        source = Source(names[0], (draw(_topics),), None, (names[1],))
        stores = (f"{id_}.{draw(_stores)}",)
        return SubTopology(id_, True, (source, Processor(names[1], stores, (), (names[0],))))
    kinds = [
        "source",
        *draw(
            st.lists(
                st.sampled_from(["source", "processor", "sink"]),
                min_size=len(names) - 1,
                max_size=len(names) - 1,
            )
        ),
    ]
    # Edges go from earlier to later nodes, as in the directed acyclic graph that Kafka builds.
    successors: dict[str, list[str]] = {name: [] for name in names}
    predecessors: dict[str, list[str]] = {name: [] for name in names}
    for at, name in enumerate(names):
        if kinds[at] == "source":
            continue
        parents = [n for n, kind in zip(names[:at], kinds[:at], strict=True) if kind != "sink"]
        for parent in draw(st.lists(st.sampled_from(parents), min_size=1, max_size=3, unique=True)):
            successors[parent].append(name)
            predecessors[name].append(parent)
    nodes = tuple(
        draw(_nodes(id_, kind, name, tuple(successors[name]), tuple(predecessors[name])))
        for name, kind in zip(names, kinds, strict=True)
    )
    return SubTopology(id_, False, draw(st.permutations(nodes).map(tuple)))


@st.composite
def _nodes(
    draw: st.DrawFn,
    id_: int,
    kind: str,
    name: str,
    after: tuple[str, ...],
    before: tuple[str, ...],
) -> Node:
    if kind == "processor":
        # A store belongs to one sub-topology.
        stores = tuple(f"{id_}.{s}" for s in draw(st.lists(_stores, max_size=3, unique=True)))
        return Processor(name, stores, after, before)
    if kind == "sink":
        topic, extractor = draw(
            st.one_of(st.tuples(_topics, st.none()), st.tuples(st.none(), _extractors))
        )
        return Sink(name, topic, extractor, before)
    if draw(st.booleans()):
        return Source(name, (), draw(_patterns), after)
    topics = tuple(draw(st.lists(_topics, min_size=1, max_size=3, unique=True)))
    return Source(name, topics, None, after)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Topologies of one to three sub-topologies."""
    count = draw(st.integers(1, 3))
    blocks = tuple(draw(_blocks(id_)) for id_ in range(count))
    return Topology(blocks, draw(st.none() | st.sampled_from(["billing", "a: b"])))


def render(topology: Topology) -> str:
    """The text, as `TopologyDescription.toString` builds it."""
    head = "Topologies:\n " if topology.name is None else f"Topology: {topology.name}:\n "
    return head + "".join("  " + _render_block(block) for block in topology.subtopologies)


def _render_block(block: SubTopology) -> str:
    body = "".join(f"    {_render_node(node)}\n" for node in block.nodes)
    if block.is_global:
        return f"Sub-topology: {block.id} for global store (will not generate tasks)\n{body}"
    return f"Sub-topology: {block.id}\n{body}\n"


def _render_node(node: Node) -> str:
    after = f"\n      --> {', '.join(node.successors) or 'none'}"
    before = f"\n      <-- {', '.join(node.predecessors) or 'none'}"
    match node:
        case Source():
            topics = f"[{', '.join(node.topics)}]" if node.pattern is None else node.pattern
            return f"Source: {node.name} (topics: {topics}){after}"
        case Processor():
            return f"Processor: {node.name} (stores: [{', '.join(node.stores)}]){after}{before}"
        case Sink():
            target = f"topic: {node.topic}" if node.topic else f"extractor class: {node.extractor}"
            return f"Sink: {node.name} ({target}){before}"
