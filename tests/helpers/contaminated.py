"""A contaminated normal law as two laws of scipy, to compare with."""

import numpy as np
from scipy import stats as st


class Contaminated:
    """(1 - share) N(mean, std²) + share N(mean, 25 std²), with the names of scipy's frozen laws."""

    def __init__(self, mean, std, share: float):
        self.shares, self.laws = (1 - share, share), (st.norm(mean, std), st.norm(mean, 5 * std))

    def _sum(self, name: str, y):
        return sum(share * np.asarray(getattr(law, name)(y)) for share, law in zip(self.shares, self.laws, strict=True))

    def pdf(self, y):
        return self._sum("pdf", y)

    def logpdf(self, y):
        return np.log(self.pdf(y))

    def cdf(self, y):
        return self._sum("cdf", y)

    def mean(self):
        return self.laws[0].mean()

    def var(self):
        return sum(share * np.asarray(law.var()) for share, law in zip(self.shares, self.laws, strict=True))
