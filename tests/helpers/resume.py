"""A chain that can be stopped, saved and resumed. test_sampler.py runs it, and resumes it in another process, too.

python resume.py <row> <weighting> <steps> <checkpoint to load> <file for the end state>
"""

import math
import sys

import torch
from table import TABLE, equip

import bdl

N = 20
WEIGHTINGS = {
    "flat": bdl.Flat(),
    "given": bdl.AdaptiveWeight(zeta=2.0, low=10.0, high=60.0, bins=10),
    "per-step": bdl.AdaptiveWeight(zeta=2.0, low=10.0, high=60.0, bins=10, energy="ema", shared=True),
    "pilot": bdl.AdaptiveWeight(zeta=2.0, bins=10, pilot=200),
}
BEFORE = {"flat": 25, "given": 25, "per-step": 25, "pilot": 205}


class Run:
    """Four chains of two numbers each. The loss depends on the step, as that of a batch does; a scheduler sets lr."""

    def __init__(self, row: str, weighting: str):
        build = next(r.build for r in TABLE if r.name == row)
        self.a, self.b = (torch.full((4, 1), v, dtype=torch.float64, requires_grad=True) for v in (0.5, -0.5))
        self.sampler = bdl.Sampler(
            [self.a, self.b],
            build(2, torch.float64),
            num_data=N,
            lr=0.2,
            temperature=torch.tensor([0.5, 1.0, 1.0, 2.0], dtype=torch.float64) if weighting == "given" else 1.0,
            weighting=WEIGHTINGS[weighting],
            chains=4,
        )
        equip(self.sampler)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.sampler, lambda k: 0.6 + 0.4 * math.cos(k / 10))

    def go(self, steps: int) -> None:
        for _ in range(steps):
            draw = torch.Generator().manual_seed(self.sampler.steps)
            target = torch.randn(2, 4, 1, generator=draw, dtype=torch.float64)

            def closure(target=target):
                self.sampler.zero_grad()
                loss = ((self.a - target[0]).square() + (self.b - target[1]).square())[:, 0] / 2
                loss.sum().backward()
                return loss

            self.sampler.step(closure)
            self.scheduler.step()

    def checkpoint(self) -> dict:
        return {
            "net": [self.a.detach(), self.b.detach()],
            "sampler": self.sampler.state_dict(),
            "scheduler": self.scheduler.state_dict(),
        }

    def load(self, checkpoint: dict) -> None:
        with torch.no_grad():
            for p, value in zip((self.a, self.b), checkpoint["net"], strict=True):
                p.copy_(value)
        self.sampler.load_state_dict(checkpoint["sampler"])
        self.scheduler.load_state_dict(checkpoint["scheduler"])


if __name__ == "__main__":
    row, weighting, steps, source, target = sys.argv[1:]
    torch.set_num_threads(1)
    run = Run(row, weighting)
    run.load(torch.load(source, weights_only=True))
    run.go(int(steps))
    torch.save(run.checkpoint(), target)
