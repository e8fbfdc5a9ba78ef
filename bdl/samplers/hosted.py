"""Hosted: how the loop around a sampler tells it of the data, the network and the processes."""

from __future__ import annotations

from dataclasses import replace

from bdl.samplers.chain import Chain, Host, MeanLoss


class Hosted:
    """The part of a `Sampler` that takes the `Host` of its chain, as a whole or function by function."""

    chain: Chain

    @property
    def host(self) -> Host:
        """What the loop around the sampler tells it of the data, the network and the processes. Set it as a whole."""
        return self.chain.host

    @host.setter
    def host(self, host: Host) -> None:
        self.chain.host = host

    @property
    def full_loss(self) -> MeanLoss | None:
        """Set it to a function that returns the mean NLL over all the data, () or (C,)."""
        return self.host.full_loss

    @full_loss.setter
    def full_loss(self, function: MeanLoss | None) -> None:
        self.host = replace(self.host, full_loss=function)

    @property
    def full_gradient(self) -> MeanLoss | None:
        """Set it to a function that back-propagates the mean NLL over all the data, as a closure does for a batch.

        It zeroes the gradients first, and returns that loss, () or (C,). `gradient="control"` needs it.
        """
        return self.host.full_gradient

    @full_gradient.setter
    def full_gradient(self, function: MeanLoss | None) -> None:
        self.host = replace(self.host, full_gradient=function)

    @property
    def batch_loss(self) -> MeanLoss | None:
        """Set it to a function that returns the mean NLL of the step's batch, () or (C,), without gradients."""
        return self.host.batch_loss

    @batch_loss.setter
    def batch_loss(self, function: MeanLoss | None) -> None:
        self.host = replace(self.host, batch_loss=function)
