"""bdl: samples from the posterior of a PyTorch network by stochastic-gradient MCMC, inside PyTorch Lightning."""
from bdl.samplers import *  # noqa: F403
