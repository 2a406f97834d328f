"""What a graph of actors refuses, and what it derives."""

import pytest

from sbp_jax.actors import Actor, ActorGraph
from sbp_jax.errors import ActorError, SbpError


def act(k: int, *payloads: object) -> int:
    return k


def refused(*actors: Actor, orders: dict | None = None) -> str:
    """The message with which a graph is refused, without its beginning."""
    with pytest.raises(ActorError) as error:
        ActorGraph(actors, orders or {})
    return str(error.value).removeprefix("this graph of actors cannot be: ")


def test_the_error_is_the_librarys() -> None:
    assert issubclass(ActorError, SbpError)


@pytest.mark.parametrize(
    ("actors", "message"),
    [
        (
            (Actor("load", act, count=2), Actor("step", act, ("loat",))),
            "actor 'step' reads 'loat', which is no actor; did you mean 'load'?",
        ),
        ((Actor("z", act, ("qqq",)),), "actor 'z' reads 'qqq', which is no actor; there are 'z'"),
        ((Actor("a", act, count=2), Actor("a", act, count=2)), "2 actors are named 'a'"),
        ((Actor("a", act, registers=0),), "actor 'a': registers=0; it needs at least 1 to give a result"),
        ((Actor("a", act, registers=True),), "actor 'a': registers=True; it needs at least 1 to give a result"),
        ((Actor("a", act, kind="copy"),), "actor 'a': kind='copy'; possible: compute, receive, send, load, host"),
        ((Actor("a", 3),), "actor 'a': act is 3, which cannot be called"),  # type: ignore[arg-type]
        ((Actor("a", act, count=-1),), "actor 'a': count=-1; it is how often the actor fires, 0 or more"),
        ((Actor("a", act, count=1, indices=(0,)),), "actor 'a': count=1 and indices are both given; give one of them"),
        ((Actor("a", act, indices=(0, 1, 0)),), "actor 'a': indices has 0 more than once; it fires once for each"),
        ((Actor("a", act, indices=(0, "x")),), "actor 'a': indices=(0, 'x'); they are integers"),  # type: ignore[arg-type]
        (
            (Actor("a", act), Actor("b", act, lane="a")),
            "actor 'b': lane='a', but actor 'a' has a lane of its own of that name; give lane='a' to both, "
            "or another name",
        ),
        (
            (Actor("a", act, ("c",)), Actor("b", act, ("a",)), Actor("c", act, ("b",))),
            "these actors read each other in a circle, so none could begin: a -> b -> c -> a. "
            "Take one of these inputs away",
        ),
        (
            (Actor("a", act, count=4), Actor("b", act, indices=(0, 2)), Actor("c", act, ("a", "b"))),
            "actor 'c' reads 'a', which fires for 0 to 3, and 'b', which fires for 0, 2; they must be the same, "
            "or give it the indices that it reads of both",
        ),
        (
            (Actor("a", act, count=4), Actor("b", act), Actor("c", act, ("a", "b"))),
            "actor 'c' reads 'a', which fires for 0 to 3, and 'b', which fires for as many indices as there are; "
            "give both a count, or neither",
        ),
        (
            (Actor("a", act, count=4), Actor("c", act, ("a",), indices=(3, 4, 7))),
            "actor 'c' fires for 3, 4, 7, but its input 'a' only for 0 to 3: 4, 7 would never come",
        ),
        (
            (Actor("a", act), Actor("c", act, ("a",), count=4)),
            "actor 'c' fires for 0 to 3, but its input 'a' goes on until its source ends; give the source the count, "
            "or this actor none",
        ),
    ],
)  # fmt: skip
def test_faults_of_actors(actors: tuple[Actor, ...], message: str) -> None:
    assert refused(*actors).replace("this graph of actors cannot be: ", "") == message


def test_one_name_is_no_tuple_of_names() -> None:
    with pytest.raises(ActorError, match=r"actor 'step': inputs='load' is one name; write \('load',\)"):
        Actor("step", act, "load")  # type: ignore[arg-type]


def test_all_faults_are_named_at_once_but_not_too_many() -> None:
    message = refused(*(Actor(f"a{i}", act, registers=-i) for i in range(8)))
    assert message.count("registers=") == 5 and message.endswith("; and 3 more")


F, G = Actor("f", act, count=2, lane="r0"), Actor("g", act, ("f",), lane="r1")
WHOLE = (("f", 0), ("f", 1))


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ({"r0": (("f", 0),)}, "the order of lane 'r0' misses f[1]"),
        ({"r0": (*WHOLE, ("f", 0))}, "the order of lane 'r0' has f[0] 2 times"),
        ({"r0": (*WHOLE, ("f", 2))}, "the order of lane 'r0' has f[2], but 'f' fires for 0 to 1"),
        ({"r0": (*WHOLE, ("g", 0))}, "the order of lane 'r0' has g[0], which runs on lane 'r1'"),
        ({"r0": (*WHOLE, ("ff", 0))}, "the order of lane 'r0' has ff[0], which is no actor's; did you mean 'f'?"),
        ({"r0": (*WHOLE, "f")}, "the order of lane 'r0' has 'f'; an entry is (actor's name, index)"),
        ({"r00": WHOLE}, "orders has lane 'r00', which no actor runs on; did you mean 'r0'?"),
    ],
)
def test_faults_of_orders(orders: dict, message: str) -> None:
    assert refused(F, G, orders=orders) == message


def test_an_order_needs_a_known_number_of_firings() -> None:
    assert refused(Actor("load", act), orders={"load": (("load", 0),)}) == (
        "lane 'load' has an order, but its actor 'load' goes on until its source ends; "
        "give the source a count, or the lane no order"
    )


def test_what_is_derived() -> None:
    graph = ActorGraph(
        (
            Actor("a", act, count=3, lane="x"),
            Actor("b", act, indices=(2, 0, 1)),
            Actor("c", act, ("b", "a"), lane="x"),
            Actor("d", act, ("a",), indices=(0, 2)),
            Actor("e", act),
            Actor("f", act, ("e",)),
            Actor("g", act, ("b",), indices=(0, 1, 2)),
        )
    )
    assert graph.lanes == {"x": ("a", "c"), "b": ("b",), "d": ("d",), "e": ("e",), "f": ("f",), "g": ("g",)}
    assert [graph.sequence(n) for n in "abcdefg"] == [
        (0, 1, 2), (2, 0, 1), (2, 0, 1), (0, 2), None, None, (0, 1, 2)
    ]  # fmt: skip
    assert graph.consumers("a") == ("c", "d") and graph.consumers("f") == ()
    assert graph.reads_some("d", "a") == {0, 2} and graph.reads_some("c", "a") is None


def test_what_reads_a_lane_with_an_order_follows_it() -> None:
    graph = ActorGraph((F, G), {"r0": (("f", 1), ("f", 0))})
    assert graph.sequence("f") == graph.sequence("g") == (1, 0)


def test_an_unknown_actor_is_refused_with_the_nearest() -> None:
    with pytest.raises(ActorError, match=r"there is no actor 'ff'; did you mean 'f'\?"):
        ActorGraph((F, G)).actor("ff")
