"""`matmul`: multiply device arrays of any library by the fastest kernel for their shape, on their stream.

What depends only on shape and type is prepared once (`harness.dispatch.call.gpus`). A call then reads the
arrays, writes three addresses and two scalars into those parameters, and launches. If the kernel copies by
TMA, an address not seen lately also costs a new tensor map. Arrays that lie as those of an earlier call are
not read again (`harness.dispatch.call.known`).
"""

from __future__ import annotations

from typing import Any

from harness.dispatch import arrays
from harness.dispatch.call import batch as batches
from harness.dispatch.call import gpus, known, operands, options
from harness.kernels.epilogue import PLAIN


def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Any = None,
    bias_axis: int = 1,
    activation: str = "",
    derivative_at: Any = None,
    precision: str = options.IEEE,
    invariant: bool = False,
    stream: Any = None,
) -> Any:
    """Queue ``out = activation(alpha * a @ b + beta * out + bias)`` on a stream of the GPU, and return `out`.

    `a` (M x K), `b` (K x N) and `out` (M x N) are matrices on one GPU, of one type: float32, bfloat16 or
    float16; of the last two, `out` may also be of float32. Each may be a PyTorch or CuPy array, any object
    with ``__cuda_array_interface__`` or (inputs only) ``__dlpack__``, or ``Buffer.array("float32", shape)``.
    Each is row-major or, as the transpose of such a matrix is, column-major: elements of a row, or of a
    column, are contiguous, rows or columns any distance apart. If `out` is None, it is made by the library
    of `a`, PyTorch or CuPy. With ``beta == 0`` its contents are not read. It must not overlap `a` or `b`.

    With more dimensions they are batches, broadcast as by ``numpy.matmul``: (batch, M, K), (batch, K, N) and
    (batch, M, N). Further leading dimensions must merge into one, and matrices of `out` must not overlap.
    Batches of small products are one launch. If `a` or `b` is the same for all, and the matrices of the other
    lie one below the other (or, of `b`, side by side), the batch is computed as a single product. Else there
    is a launch for each matrix.

    `bias` is a contiguous vector of `out`'s type: N elements, one for each column, or with ``bias_axis=0`` M
    elements, one for each row, the same for all of a batch. `activation` is "relu", "gelu", "gelu_tanh" (its
    approximation by tanh) or "silu". The kernel that multiplies does both in float32, before the result is
    rounded. With `derivative_at`, of `out`'s shape, type and strides, the result is ``(alpha * a @ b + beta *
    out) * f'(derivative_at)``, with the derivative of `activation`: a gradient that goes back through it.

    float32 is multiplied as true float32, without tensor cores. ``precision="tf32"`` uses them, with the
    elements of `a` and `b` rounded to tf32; ``"3xtf32"`` adds three such products for nearly the precision of
    float32 (cu/tensor/28_3xtf32.cu tells what is lost, and 38_3xtf32_panels.cu for sm_90). On sm_90
    ``"fp16x3"`` adds three products of float16 with scaled rows and columns, as exact where these have no
    wide range of magnitudes (cu/tensor/36_fp16x3.cu), and ``"bf16x6"`` six of bfloat16, which keep the error
    bounds of float32 (cu/tensor/32_bf16x6_panels.cu). Their workspaces hold 4 and 6 bytes for each element of
    `a` and `b`, that of 3xtf32 8.
    bfloat16 and float16 use the tensor cores, are summed in float32 and rounded once.

    `stream` is a harness Stream, an object with ``__cuda_stream__`` (CUDA's Python protocol), ``cuda_stream``
    (PyTorch) or ``ptr`` (CuPy), or an address (0 and 1: the legacy default stream). If it is None, the stream
    of `a` is used: PyTorch's or CuPy's current stream, the one that its array interface names, or else the
    legacy default stream. If an array is ready on another stream, the product waits on the GPU for that
    stream, and that stream then waits for the product, so that the result can be used there as if the call
    had been on it.

    The call runs in the GPU's primary context, and leaves the current context as it was. Any number of
    threads may call. The first call for a shape chooses a kernel and may compile it, or time several
    where the environment has ``HARNESS_MATMUL=measure`` (make that call before capturing a graph). From then
    on the same shape in the same layout gives bitwise the same result, if rows of `a` and `b` begin alike (at
    multiples of 32 bytes, of 16, or neither) and, in float32 with a beta, the rows of `out` begin at
    multiples of 16 bytes in both calls, or in neither. If `invariant`, a row of the result has bitwise the
    same elements however many rows `a` has, whichever it is, and however the arrays lie in memory (in 3xtf32,
    bf16x6 and fp16x3 row- and column-major results may differ); then `beta` must be 0 or 1, and `alpha` 1 if
    `beta` is 1 or there is a bias.

    Some kernels need memory beside the operands, tens of MB. A large product first copies `a` and `b` if the
    TMA cannot read them where they are (address or row pitch not a multiple of 16 bytes); if there is no
    memory for the copies, it runs without them. All this memory is kept for each stream.

    In a captured stream that memory is the graph's own, so replays in any stream may overlap with ordinary
    calls. Up to 32 MB are made when the graph is captured, and freed by a later call when the graph and all
    that was made of it is gone: two executables of one graph, or the same child graph twice, must not run at
    the same time. More than that (large products in 3xtf32, fp16x3 and bf16x6, and copies) nodes of the graph
    allocate, zero and free at each replay. CUDA restricts graphs with such nodes: only one instance at a
    time, no clones, a child of another graph only by moving it there, never the body of a conditional node.

    Raises UsageError for unfit arguments, before anything is queued, and OutOfMemory if a kernel has no room.
    """
    scalars = options.scalar("alpha", alpha), options.scalar("beta", beta)
    asked = None if stream is None else arrays.stream_address(stream)
    read = bias if derivative_at is None else derivative_at
    axis = bias is not None and (type(bias_axis), bias_axis)  # 1.0 equals 1, and is refused
    refusable = scalars if invariant else out is None and scalars[1]
    depends = precision, activation, axis, derivative_at is None, refusable
    key, call = known.find(a, b, out, read, depends)
    if call is not None and (done := call.again(a, b, out, read, scalars, stream, asked)) is not None:
        return done
    given = operands.read(a, b, out, stream=asked, precision=precision, beta=scalars[1])
    left, right, result, out, dtype, leading, asked = given
    epilogue, added = PLAIN, None
    if bias is not None or activation or derivative_at is not None or result.dtype is not left.dtype:
        epilogue, added = options.epilogue(left, result, asked, bias, bias_axis, activation, derivative_at)
    batch = batches.of(left, right, result) if leading else None
    matrices = (left, right, result) if added is None else (left, right, result, added)
    whole = batches.whole(batch, matrices, epilogue)
    batches.refuse_overlaps(whole, epilogue)
    # Products side by side have more columns, on which the order of a row's sums may depend.
    if batch and (single := batch.joined(left, right, result, epilogue.bias, wide=not invariant)):
        (left, right, result), batch = single, None
    rows = options.invariant(result, scalars, epilogue) if invariant else ""
    swapped = result.transposed
    if swapped:  # out^T = b^T a^T
        left, right, result, epilogue = right.flipped, left.flipped, result.flipped, epilogue.flipped
        batch = batch and batch.flipped
    options.check_stream(stream, left)
    # No waiting is needed on the stream of `a` if all are ready there, or if all are ready on every stream.
    alike = given.ready_together and (added is None or added.ready == given.left.ready)
    ordered = alike and (stream is None or given.left.ready is None)
    queued = (left, right, result) if added is None else (left, right, result, added)
    gpu, kind = gpus.gpu(left.device), (dtype, epilogue, rows)
    gpu.run(queued, scalars, asked, ordered, kind, batch)
    known.keep(key, a, gpu, (gpus.shape_of(queued), kind, batch), matrices, whole, swapped)
    return out
