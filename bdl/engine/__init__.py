"""The engine: a stack of networks, how it makes outputs, and how it makes gradients."""
