"""Samplers: dynamics, full-batch kernels, weightings, priors, and the shell that joins them to torch.

One convention holds everywhere. The data set has N items and the prior is p(θ). The potential is
U(θ) = -Σ_i log p(y_i|x_i,θ) - log p(θ), in nats, and the target distribution is exp(-U/T). Users write the mean
negative log-likelihood of the batch. g = ∇(U/N) is estimated on the batch, prior included; tau = T/N; lr is in
SGD's units.
"""
