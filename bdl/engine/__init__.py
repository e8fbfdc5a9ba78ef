"""The engine: a stack of networks, how it makes outputs, and how it makes gradients.

Read `stack.py` first: C copies of a network, and where they start. `forward.py` runs many networks as one,
with the tools of `functional.py`. `gradient.py` says what a gradient is, and holds the form that
autograd finds; `mlp_gradient.py` has the chain rule written out, `mlp_kernel.py` the same in C, and `graphs.py`
records kernels. `choose.py` is the one place that chooses among them. The C code is `mlp_kernel.c`: `bdl.native`
compiles it, and `mlp_library.py` tells it where the layers lie, also for the outputs of `forward.py`.
"""
