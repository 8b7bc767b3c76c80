"""burst.h for ctypes: the structs, field by field, and the functions that Python programs here call.

`python3 binding.py layout` prints every struct's C name, size and offsets; tests/binding.sh compares them with the header.
"""
import ctypes
import sys

I64, INT, PTR, SIZE, REAL = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_double
structs = {}


def struct(name, *fields):
    structs[name] = type(name, (ctypes.Structure,), {"_fields_": list(fields)})
    return structs[name]


MaskSpec = struct("burst_mask_spec", ("struct_size", SIZE), ("q_tokens", I64), ("k_tokens", I64), ("align", INT),
                  ("causal", INT), ("window_left", I64), ("window_right", I64), ("sink_tokens", I64), ("prefix", I64),
                  ("documents", I64), ("q_offsets", PTR), ("k_offsets", PTR))
Problem = struct("burst_problem", ("struct_size", SIZE), ("dtype", INT), ("batch", I64), ("q_heads", I64),
                 ("kv_heads", I64), ("q_tokens", I64), ("k_tokens", I64), ("head_dim", I64), ("value_dim", I64),
                 ("scale", REAL), ("softcap", REAL), ("alibi", PTR), ("sink", INT), ("mask", PTR), ("bias", PTR))
Options = struct("burst_options", ("struct_size", SIZE), ("threads", INT), ("isa", INT), ("passes", ctypes.c_uint),
                 ("memory_limit", SIZE), ("q_tile", I64), ("k_tile", I64), ("progress", PTR), ("progress_user", PTR),
                 ("cancel", PTR), ("partition", INT), ("side_forward", INT), ("side_backward", INT),
                 ("no_overlap", INT), ("narrow_gradients", INT), ("strategy", INT), ("send_o", INT), ("timeout", REAL))
Tensor = struct("burst_input", ("data", PTR), ("batch_stride", I64), ("token_stride", I64), ("head_stride", I64))
ForwardArgs = struct("burst_forward_args", ("struct_size", SIZE), ("q", Tensor), ("k", Tensor), ("v", Tensor),
                     ("sink", PTR), ("o", Tensor), ("lse", PTR), ("stats", PTR))
BackwardArgs = struct("burst_backward_args", ("struct_size", SIZE), ("q", Tensor), ("k", Tensor), ("v", Tensor),
                      ("o", Tensor), ("d_o", Tensor), ("sink", PTR), ("lse", PTR), ("stats", PTR), ("d_q", Tensor),
                      ("d_k", Tensor), ("d_v", Tensor), ("d_sink", PTR), ("accumulate", INT))


def view(x):
    """A [batch][heads][tokens][dim] tensor of any strides, as Burst sees it."""
    assert x.stride(3) == 1
    return Tensor(x.data_ptr(), x.stride(0), x.stride(2), x.stride(1))


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(str(path))
        for name, result, arguments in [
                ("burst_version", ctypes.c_char_p, []), ("burst_last_error", ctypes.c_char_p, []),
                ("burst_isa_name", ctypes.c_char_p, [INT]), ("burst_mask_create", INT, [PTR, PTR]),
                ("burst_mask_free", None, [PTR]), ("burst_plan_create", INT, [PTR, PTR, PTR, PTR]),
                ("burst_plan_free", None, [PTR]), ("burst_plan_stats_bytes", SIZE, [PTR]),
                ("burst_plan_pairs", I64, [PTR]), ("burst_plan_isa", INT, [PTR]),
                ("burst_forward", INT, [PTR, PTR]), ("burst_backward", INT, [PTR, PTR])]:
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments

    def __call__(self, name, *arguments):
        if getattr(self.c, name)(*arguments) != 0:
            raise RuntimeError(f"{name}: {self.c.burst_last_error().decode()}")


if __name__ == "__main__" and sys.argv[1:] == ["layout"]:
    for name, kind in structs.items():
        print(name, ctypes.sizeof(kind), *(f"{field}@{getattr(kind, field).offset}" for field, _ in kind._fields_))
