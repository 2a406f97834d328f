"""What differs between versions of JAX, or is not said in its public interface. Nothing else may depend on either."""

import contextlib
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax._src import config as _config
from jax._src.core import EvalTrace, trace_ctx, trace_state_clean

# Tracers of jax.jvp, and of jax.grad and jax.vjp since JAX linearizes directly.
_DIFFERENTIATING = ("JVPTracer", "LinearizeTracer")
# Traces that compute as they go, on what the trace around them computes with.
_EAGER_TRANSFORMS = ("JVPTrace", "LinearizeTrace", "BatchTrace")

_PIPELINED = ("all_gather", "all_reduce", "reduce_scatter")

# Who is told of every run, and what they are told: the program's name, and what prints its compiled text.
Observer = Callable[[str, Any], None]
_observers: list[Observer] = []
_lock = threading.Lock()


def multiplies_bfloat16() -> bool:
    """Whether XLA for CPUs multiplies matrices of bfloat16 as they are, not in float32 (measured: 0.10.2 and 0.12)."""
    return jax.__version_info__ >= (0, 12)


def is_tracer(x: Any) -> bool:
    """Whether a value is only being traced (jit, grad, vmap), so that there is no data."""
    return isinstance(x, jax.core.Tracer)


def is_batched(x: Any) -> bool:
    """Whether a value is one that ``jax.vmap`` maps over, also below ``jax.grad``."""
    while is_tracer(x):
        if type(x).__name__ == "BatchTracer":
            return True
        x = getattr(x, "primal", None)
    return False


def is_differentiated(x: Any) -> bool:
    """Whether a value is one that ``jax.grad`` or ``jax.jvp`` differentiates by."""
    return type(x).__name__ in _DIFFERENTIATING


def is_tracing() -> bool:
    """Whether JAX is tracing here (jit, grad, vmap, eval_shape), so that nothing can be placed on devices."""
    return not trace_state_clean()


def is_staging() -> bool:
    """Whether a program is being written down here (jit, eval_shape), also below a ``jax.grad`` or ``jax.vmap``.

    Not where ``jax.grad`` or ``jax.vmap`` alone runs ops one by one.
    """
    trace = trace_ctx.trace
    while type(trace).__name__ in _EAGER_TRANSFORMS:
        trace = trace.parent_trace  # pyright: ignore
    return not isinstance(trace, EvalTrace)


def take_as_array(kind: type, value: Callable[[Any], Any], check: Callable[[Any], None]) -> None:
    """Objects of this type as operands of JAX's primitives: ``value`` gives the array; ``check`` may refuse
    an object whose type JAX asks for.

    ``__jax_array__`` does this for ``jax.numpy`` alone; ``jax.lax``, and what calls it straight away (some of
    ``jax.nn``), has no public way.
    """
    try:
        from jax._src.core import pytype_aval_mappings
        from jax._src.dtypes import register_canonicalize_value_handler
    except ImportError:  # JAX's own message then
        return

    def aval(x: Any) -> Any:
        check(x)
        return jax.core.ShapedArray(x.shape, x.dtype)

    register_canonicalize_value_handler(kind, value)
    pytype_aval_mappings[kind] = aval


def called_by_operator() -> bool:
    """Whether what runs was called by an operator of ``jax.Array`` (its ``__add__``, say), not by a function."""
    caller = sys._getframe(2)
    return caller.f_globals.get("__name__", "").endswith("numpy.array_methods")


def within_mesh(mesh: jax.sharding.Mesh) -> contextlib.AbstractContextManager[Any]:
    """A block of traced code on ``mesh``, whatever ``jax.set_mesh`` the caller stands in: ``shard_map`` takes no other.

    A mesh with explicit axes is another one to JAX than the same devices with automatic axes.
    """
    around = jax.sharding.get_abstract_mesh()
    if around.empty or around == mesh.abstract_mesh:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def trace_context() -> Any:
    """What of JAX's settings a traced program hangs on, as ``jax.jit`` keeps programs by it: hashable, comparable.

    ``enable_x64``, ``default_matmul_precision``, promotion rules, ``debug_nans``, the mesh and the axes around, more.
    """
    return _config.trace_context()


def as_weak(x: jax.Array) -> jax.Array:
    """An array as a weakly typed one, as numbers become inside JAX: it adapts to the dtype of what it meets."""
    bind = jax.lax.convert_element_type_p.bind
    where = x.sharding if x.committed else None
    return jax.jit(lambda v: bind(v, new_dtype=v.dtype, weak_type=True, sharding=None), out_shardings=where)(x)


def collective_pipelining_options() -> dict[str, bool | int | float | str]:
    """XLA's options for GPUs that move a loop's collectives beside the compute of its next or previous iteration."""
    if jax.__version_info__ < (0, 11):
        return {f"xla_gpu_enable_pipelined_{kind}": True for kind in _PIPELINED}
    return {f"xla_gpu_pipeline_{kind}": "COLLECTIVE_PIPELINING_MODE_ON" for kind in _PIPELINED}


def looks_for_nans() -> bool:
    """Whether ``jax_debug_nans`` or ``jax_debug_infs`` is on."""
    return bool(_config.debug_nans.value or _config.debug_infs.value)


@contextlib.contextmanager
def without_nan_checks() -> Iterator[None]:
    """A block in which ``jax_debug_nans`` and ``jax_debug_infs`` are off: for what only moves values."""
    if not looks_for_nans():
        yield
        return
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


def refuse_nans(values: Any, name: str) -> None:
    """Raise JAX's error where ``jax_debug_nans`` or ``jax_debug_infs`` finds something in the results of ``name``."""
    with without_nan_checks():
        found = [x for x in jax.tree.leaves(values) if not is_tracer(x) and jnp.issubdtype(x.dtype, jnp.inexact)]
        has_nan = any(bool(jnp.isnan(x).any()) for x in found)
        has_inf = any(bool(jnp.isinf(x).any()) for x in found)
    for there, is_asked, what in (
        (has_nan, _config.debug_nans.value, "nan"),
        (has_inf, _config.debug_infs.value, "inf"),
    ):
        if there and is_asked:
            raise FloatingPointError(f"invalid value ({what}) encountered in {name}")


_numbers: dict[Any, int] = {}
_count = itertools.count()
_met: tuple[Any, int] = (None, -1)


def context_number() -> int:
    """``trace_context`` as a number: a quick key. The last one met is not looked for."""
    global _met
    context, known = trace_context(), _met
    if context == known[0]:
        return known[1]
    number = _numbers.setdefault(context, next(_count))
    _met = context, number  # of any thread: one assignment, both or neither
    return number


def traced(fn: Callable[..., Any], avals: Sequence[jax.ShapeDtypeStruct], name: str) -> tuple[Any, Any]:
    """A function of arrays as a closed jaxpr, and the tree of its results.

    As ``jax.make_jaxpr``, without the ``jax.jit`` that it makes for each function: that takes half of its time.
    ``name`` is the function's in errors. Raises ``TypeError`` for a result that is not JAX's.
    """
    trees: list[Any] = []

    def flat(*operands: Any) -> list[Any]:
        result = fn(*operands)
        leaves, tree = jax.tree.flatten(result)
        for path, x in () if all(map(valid_jaxtype, leaves)) else jax.tree_util.tree_leaves_with_path(result):
            if not valid_jaxtype(x):
                where = f" at result{jax.tree_util.keystr(path)}" if path else ""
                raise TypeError(f"it returned a value of type {type(x)}{where}, which is not a valid JAX type")
        trees.append(tree)
        return leaves

    try:
        from jax.extend.core import ClosedJaxpr, DebugInfo, valid_jaxtype
        from jax.extend.linear_util import wrap_init
        from jax.interpreters.partial_eval import trace_to_jaxpr_dynamic as trace
    except ImportError:
        closed, out_shape = jax.make_jaxpr(fn, return_shape=True)(*avals)
        return closed, jax.tree.structure(out_shape)
    info = DebugInfo("sbp", name, None, None)  # pyright: ignore
    shaped = [jax.core.ShapedArray(x.shape, x.dtype, getattr(x, "weak_type", False)) for x in avals]
    jaxpr, _, consts = trace(wrap_init(flat, debug_info=info), shaped)
    return ClosedJaxpr(jaxpr, consts), trees[0]


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr's equations with its arguments and results, and the constants it comes with; none where it has none.

    JAX held the two apart in a ``ClosedJaxpr`` before a ``Jaxpr`` held its constants itself.
    """
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def scan_operands(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many operands of a scan equation are constants, and how many its carry; those after them are scanned.

    JAX counted them (``num_consts``, ``num_carry``) before it kept a tree of each (``ft_in``).
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def lowered_function(primitive: Any) -> Callable[..., Any] | None:
    """The function of arrays that XLA is handed for a primitive on every platform (``mlir.lower_fun``).

    It takes the equation's operands and parameters and returns a list of results, or one where the primitive has one.
    None where a primitive is lowered in another way, or this version of JAX keeps its rules elsewhere.
    """
    try:
        from jax._src.interpreters import mlir

        rule = mlir._lowerings[primitive].rule
        if any(primitive in rules for rules in mlir._platform_specific_lowerings.values()):
            return None
    except (ImportError, AttributeError, KeyError):
        return None
    made_by = getattr(rule, "__qualname__", "").partition(".")[0]
    return inspect.getclosurevars(rule).nonlocals.get("fun") if made_by == "lower_fun" else None


@contextlib.contextmanager
def observed_runs(observer: Observer) -> Iterator[None]:
    """Every compiled program that this process runs in the block is told to ``observer``, with its executable.

    JAX has no public way to see runs: a function that has run once is called from C++ alone. In the block those
    shortcuts are forgotten and not made anew, so that every run comes by ``ExecuteReplicated``. Nothing is traced or
    compiled again; a call takes some 0.2 ms more. Blocks may nest, and see the runs of all threads.

    Raises ``NotImplementedError`` where this version of JAX is built otherwise.
    """
    with _lock:
        if not _observers:
            _install()
        _observers.append(observer)
    try:
        yield
    finally:
        with _lock:
            # Not by value: the same observer may be in twice, and bound methods of equal objects are equal.
            del _observers[next(i for i in reversed(range(len(_observers))) if _observers[i] is observer)]
            if not _observers:
                _restore()


def program_text(executable: Any) -> str:
    """The optimized HLO of an executable that ``observed_runs`` told of, as ``jax.stages.Compiled.as_text`` gives."""
    return "\n\n".join(module.to_string() for module in executable.hlo_modules())


_originals: dict[str, Any] = {}


def _install() -> None:
    try:
        from jax._src.interpreters import pxla

        run, shortcut = pxla.ExecuteReplicated.__call__, pxla.MeshExecutableFastpathData
        _forget_shortcuts()
    except (ImportError, AttributeError) as error:
        raise NotImplementedError(f"jax {jax.__version__} does not let runs be observed ({error})") from error

    def told(self: Any, *args: Any) -> Any:
        results = run(self, *args)
        for observer in tuple(_observers):
            observer(self.name, self.xla_executable)
        return results

    _originals.update(run=run, shortcut=shortcut)
    setattr(pxla.ExecuteReplicated, "__call__", told)  # noqa: B010
    setattr(pxla, "MeshExecutableFastpathData", lambda *_: None)  # noqa: B010  no data, no shortcut
    _forget_shortcuts()


def _restore() -> None:
    from jax._src.interpreters import pxla

    setattr(pxla.ExecuteReplicated, "__call__", _originals["run"])  # noqa: B010
    setattr(pxla, "MeshExecutableFastpathData", _originals["shortcut"])  # noqa: B010
    _forget_shortcuts()  # calls made in the block are noted as having none


def _forget_shortcuts() -> None:
    import jaxlib._jax as _jax  # pyright: ignore

    _jax.PjitFunctionCache.clear_all()


def coordination_client() -> Any:
    """The client of JAX's coordination service, which ``jax.distributed.initialize`` connects; None without one."""
    from jax._src import distributed

    return distributed.global_state.client


def process_of_coordination() -> tuple[int, int]:
    """(this process's rank, the number of processes) as ``jax.distributed.initialize`` was told; no backend starts."""
    from jax._src import distributed

    return distributed.global_state.process_id, distributed.global_state.num_processes


def backends_are_started() -> bool:
    """Whether a JAX backend has started, after which processes can no longer be connected."""
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def detected_cluster(timeout_seconds: float) -> tuple[str | None, int | None, int | None]:
    """(coordinator's address, number of processes, rank) as JAX reads them from SLURM, Open MPI, Kubernetes, a TPU pod.

    What it does not find is None. No connection is made but to ask the cluster for its addresses.
    """
    from jax._src.clusters import ClusterEnv

    address, processes, rank, _ = ClusterEnv.auto_detect_unset_distributed_params(
        None, None, None, None, None, int(timeout_seconds)
    )
    return address, processes, rank


_abandoned: list[Any] = []


def abandon_coordination() -> None:
    """Leave the coordination service without its exit barrier, which waits for all other processes.

    The others see it as a process that died: after the heartbeat's limit, at once if this is rank 0.
    """
    from jax._src import distributed

    state = distributed.global_state
    _abandoned.append((state.client, state.service, state.preemption_sync_manager))
    state.client = state.service = state.preemption_sync_manager = None


def keep_cpu_collectives_on(host: str) -> None:
    """Gloo, which moves tensors between processes on CPUs, listens on this address only, not on the host name's.

    Before a backend starts. Where JAX is built otherwise nothing changes.
    """
    try:
        import jaxlib._jax as _jax  # pyright: ignore
        from jax._src import distributed, xla_bridge

        make, register = xla_bridge.make_cpu_client, xla_bridge.register_backend_factory
        gloo = _jax.make_gloo_tcp_collectives
    except (ImportError, AttributeError):
        return

    def client() -> Any:
        if jax.config.jax_cpu_collectives_implementation != "gloo" or distributed.global_state.client is None:  # pyright: ignore
            return make()
        return make(collectives=gloo(distributed_client=distributed.global_state.client, hostname=host))

    register("cpu", client, priority=0, fail_quietly=False)
