"""LoRA by peft: adapters are sampled and stored as any part. Tests of `bdl.contrib.language.lora`."""

import functools
import importlib.util
import sys

import pytest
import torch
import toys
from torch import nn
from torch.utils.data import DataLoader

import bdl
from bdl.contrib.language.lora import ADAPTERS

torch.manual_seed(0)
TOKENS = torch.randint(20, (40, 6))
LABELS = (TOKENS[:, 0] % 2).long()
ITEMS = [{"input_ids": x, "labels": y} for x, y in zip(TOKENS, LABELS, strict=True)]


def model():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.DistilBertConfig(
        dim=16, n_layers=2, n_heads=2, hidden_dim=32, vocab_size=20, max_position_embeddings=8, num_labels=2
    )
    return bdl.models.Logits(transformers.AutoModelForSequenceClassification.from_config(config))


def adapted(net, **config):
    pytest.importorskip("peft")
    return bdl.models.lora(net, r=2, lora_alpha=4, target_modules=["q_lin", "v_lin"], **config)


def test_adapters_start_at_the_network_and_leave_it_alone():
    net = model().eval()
    names, stream = set(net.state_dict()), torch.get_rng_state()
    part = adapted(net).eval()
    assert torch.equal(torch.get_rng_state(), stream) and set(net.state_dict()) == names
    torch.testing.assert_close(part(TOKENS), net(TOKENS))
    assert {n for n, p in part.named_parameters() if p.requires_grad} == {n for n in part.state_dict() if "lora_" in n}
    a, b, c = (adapted(net, seed=s).state_dict() for s in (0, 0, 1))
    drawn = next(name for name in a if "lora_A" in name)
    assert torch.equal(a[drawn], b[drawn]) and not torch.equal(a[drawn], c[drawn])


@pytest.mark.parametrize("chains", [None, 2])
def test_samples_of_adapters_predict(chains, tmp_path):
    net = adapted(model())
    stack = net if chains is None else bdl.ChainStack(net, chains, only=ADAPTERS, shared=True)
    build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(), num_data=40, lr=0.05, only=ADAPTERS)
    module = bdl.BayesianModule(stack, build)
    keep = bdl.schedules.EveryStep(burn_in=4, every=2)
    trainer = toys.trainer(tmp_path, 10, [bdl.CollectSamples(keep)], max_epochs=-1)
    trainer.fit(module, DataLoader(ITEMS, batch_size=20))
    store = bdl.SampleStore(tmp_path)
    tensors = store.read(store.records()[-1])
    assert tensors and all("lora_" in name for name in tensors)
    posterior = bdl.Posterior.load(tmp_path, adapted(model(), seed=3))
    probs = posterior.predict({"input_ids": TOKENS}).probs
    assert probs.shape == (40, 2) and posterior.predict({"input_ids": TOKENS}).epistemic.max() > 0


def test_adapters_of_the_upper_layer_share_the_layers_below(monkeypatch):
    """The layer without adapters runs once for all chains, the other one once for each."""
    net = adapted(model(), layers_to_transform=[1], layers_pattern="layer")
    stack = bdl.ChainStack(net, 3, only=ADAPTERS, shared=True).train()
    layer, calls = type(net.get_submodule("model.distilbert.transformer.layer.0")), []
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda self, *a, **k: (calls.append(self), forward(self, *a, **k))[1])
    with torch.no_grad():
        for name, p in stack.net.named_parameters():
            if "lora_B" in name:
                p.normal_()
    together = stack(TOKENS)
    below, above = (stack.net.get_submodule(f"model.distilbert.transformer.layer.{i}") for i in range(2))
    assert [calls.count(below), calls.count(above)] == [1, 3]
    stack.shared = False
    assert torch.equal(together, stack(TOKENS.expand(3, *TOKENS.shape))) and not torch.equal(together[0], together[1])


def test_layers_that_are_not_there_are_refused():
    with pytest.raises(bdl.ConfigError, match="peft refuses these adapters: .*query"):
        bdl.models.lora(nn.Sequential(nn.Linear(2, 2)), r=2, target_modules=["query"])


def test_a_missing_peft_is_one_line(monkeypatch):
    module = sys.modules["bdl.contrib.language.lora"]
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "peft" else importlib.util.find_spec(name))
    with pytest.raises(bdl.ConfigError, match=r"needs the package peft: pip install 'bdl\[lora\]'"):
        bdl.models.lora(nn.Linear(2, 2), r=1)
