"""Tells the preloaded library which experts a layer is going to read.

transformers (5.0 and later) keeps the experts of a layer in one tensor, chooses the function that
computes them through ExpertsInterface.get_interface(), and calls it with the ids that the router
chose. attach() wraps that one method, so every implementation, also the model's own loop (eager),
first says the ids. The library finds the layer by the tensor's address in the mapped checkpoint;
it does nothing for tensors that are elsewhere.

    int moepager_preload_routed(const void *weights, uint64_t expert_stride_bytes,
                                const int64_t *ids, size_t count);

weights: of expert 0. ids may repeat, and be out of range. Returns when the experts have been read
or cannot be; 0: they are paged.
"""
import ctypes
import functools

# The first that a module has. All parts of an expert are read together, so one names it.
_TENSORS = ("gate_up_proj", "up_proj", "w1", "down_proj")


def _library_function():
    function = ctypes.CDLL(None).moepager_preload_routed
    function.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]
    function.restype = ctypes.c_int
    return function


def _say(torch, routed, experts, ids):
    weights = next((tensor for tensor in (getattr(experts, name, None) for name in _TENSORS)
                    if tensor is not None), None)
    if (not isinstance(weights, torch.Tensor) or weights.device.type != "cpu" or
            weights.dim() != 3 or not isinstance(ids, torch.Tensor) or ids.device.type != "cpu" or
            ids.dtype != torch.int64):
        return
    ids = ids.detach().contiguous()
    routed(weights.data_ptr(), weights.stride(0) * weights.element_size(), ids.data_ptr(),
           ids.numel())


def attach(moe):
    """moe: the module transformers.integrations.moe. Raises what it does not find as expected."""
    torch = moe.torch
    is_compiling = moe.is_torchdynamo_compiling
    routed = _library_function()
    choose = moe.ExpertsInterface.get_interface

    @functools.lru_cache(maxsize=None)
    def saying(compute):
        @functools.wraps(compute)
        def said(experts, *args, **kwargs):
            if not is_compiling():
                try:
                    _say(torch, routed, experts,
                         args[1] if len(args) > 1 else kwargs.get("top_k_index"))
                except Exception:
                    pass
            return compute(experts, *args, **kwargs)
        return said

    @functools.wraps(choose)
    def get_interface(self, *args, **kwargs):
        return saying(choose(self, *args, **kwargs))

    moe.ExpertsInterface.get_interface = get_interface
