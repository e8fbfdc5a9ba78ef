"""What `bdl.sample` samples: a network or what builds it, its copies, and the data; and what their energies cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils.data import DataLoader

import bdl
from bdl.data.ordered import counts_of, data_in_words
from bdl.display import count_of
from bdl.errors import ConfigError
from bdl.frozen import check_parameters, refuse_parallel
from bdl.lightning.host import batches_of, dataset_of

Network = nn.Module | Callable[[], nn.Module]
DEAR = 0.1  # share of the work of the steps above which energies over all the data are left out, unless asked for
BACKWARD = 3  # a step's passes over its items, in forward passes: backward takes about two


def built(net: Any) -> nn.Module:
    """The network, which a function may build. Raises ConfigError for one that cannot be sampled."""
    one = net() if callable(net) and not isinstance(net, nn.Module) else net
    if not isinstance(one, nn.Module):
        got = repr(net) if one is net else f"one that returns {one!r}"
        raise ConfigError(f"bdl.sample needs a network, or a function that builds it, got {got}")
    refuse_parallel(one)
    check_parameters(one.named_parameters())
    return one


def stacked(
    net: Network, loader: Any, chains: int, start: Literal["fresh", "given"] | None, law: Mapping[str, Any]
) -> nn.Module:
    """C copies of the network, which share the batches of a loader that does not know of chains."""
    shared = getattr(loader, "chains", None) is None
    part: dict[str, Any] = {"only": law.get("only"), "frozen": law.get("frozen", "eval")}
    return bdl.ChainStack(net, chains, start=start, seed=law["seed"], shared=shared, **part)


def checked_data(loader: Any, num_data: int | None = None) -> int:
    """N, the items of the loader's data. Raises ConfigError for data that cannot be sampled. num_data: where given."""
    if isinstance(loader, list | tuple) and loader and isinstance(loader[0], Mapping | list | tuple):
        raise ConfigError(
            f"bdl.sample needs a loader, got a {type(loader).__name__}: if it holds batches, give "
            "DataLoader(batches, batch_size=None, shuffle=True)"
        )
    if isinstance(loader, list | tuple) and loader and all(isinstance(each, Tensor) for each in loader):
        raise ConfigError(
            "bdl.sample needs a loader, got tensors: give DataLoader(TensorDataset(inputs, targets), batch_size=100, "
            "shuffle=True)"
        )
    counts = counts_of(loader)
    if not counts and (num_data is None or not isinstance(loader, DataLoader)):
        raise ConfigError(
            f"bdl.sample needs a loader over a data set with a length, got {type(loader).__name__}: a DataLoader over "
            "a stream needs num_data, the number of its items"
        )
    if counts and (not counts[-1] or not batches_of(loader)):
        raise ConfigError(f"the loader has no batch of its {counts[-1]} items: give it data, or lower batch_size")
    if len(counts) > 1 and num_data is None:
        raise ConfigError(f"{data_in_words(counts)}: set num_data to the number of independent observations")
    return num_data or next(iter(counts))


@contextmanager
def missing_items(loader: Any) -> Iterator[None]:
    """Say of an IndexError that the data set has fewer items than its length, where that is so."""
    try:
        yield
    except IndexError as error:
        data, last = dataset_of(loader), 0
        try:
            last = len(data) - 1  # type: ignore[arg-type]
            data[last]  # type: ignore[index]
        except IndexError:
            raise ConfigError(
                f"{type(data).__name__} says that it has {count_of(last + 1, 'item')}, and has no item {last} "
                f"({error}): correct its __len__"
            ) from error
        except Exception:  # of another kind, which the first error is about
            pass
        raise


def measures_energies(asked: bool | None, kept: float, items: int, batches: int | None) -> bool:
    """Whether U is measured over all the data at every kept state; says on the screen what that costs, or is spared.

    kept: states a step. batches: of a pass over the items; None, where nobody knows them, measures only if asked.
    """
    if batches is None:
        return bool(asked)
    cost = kept * batches / BACKWARD
    measures = cost <= DEAR if asked is None else asked
    if cost > DEAR and asked is not False:
        work = f"energies over all {items:,} items at every kept state would add {cost:.0%} of the work of the steps"
        print(work + (", as asked for" if measures else ", and are left out: full_energy=True measures them"))
    return measures
