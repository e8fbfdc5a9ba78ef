"""Starts at saved weights: every kind of file, prefixes, and one line for a file of another network."""

import os

import lightning as L
import pytest
import safetensors.torch
import torch
import torchvision
from torch import nn

import bdl


def network(width=4, classes=3):
    return nn.Sequential(nn.Linear(5, width), nn.BatchNorm1d(width), nn.Linear(width, classes))


def same(a, b):
    return all(torch.equal(t, b.state_dict()[name]) for name, t in a.state_dict().items())


class Module(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.model, self.scale = net, nn.Parameter(torch.ones(1))

    def training_step(self, batch, batch_idx):
        return self.model(batch).square().mean() * self.scale

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def write(kind, net, folder):
    path = folder / f"weights{'.safetensors' if kind == 'safetensors' else '.pt'}"
    if kind == "safetensors":
        safetensors.torch.save_file(net.state_dict(), path)
    elif kind == "state_dict":
        torch.save(net.state_dict(), path)
    elif kind == "prefix":
        torch.save({f"module.net.{k}": v for k, v in net.state_dict().items()}, path)
    else:
        trainer = L.Trainer(
            max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, default_root_dir=folder,
        )  # fmt: skip
        trainer.fit(Module(net), torch.utils.data.DataLoader(torch.randn(6, 5), batch_size=6))
        trainer.save_checkpoint(path)
    return str(path)


@pytest.mark.parametrize("kind", ["state_dict", "safetensors", "prefix", "lightning"])
def test_a_network_gets_the_weights_of_a_file(kind, tmp_path):
    saved, net = network(), network()
    path = write(kind, saved, tmp_path)
    assert bdl.CheckpointStart(path).load(net) is net and same(saved, net)
    wrapped = nn.ModuleDict({"inner": network()})  # the prefix is that of the network
    if kind in ("state_dict", "safetensors"):
        assert same(saved, bdl.CheckpointStart(path).load(wrapped)["inner"])


def test_weights_of_torchvision(tmp_path):
    saved, net = torchvision.models.resnet18(num_classes=7), torchvision.models.resnet18(num_classes=10)
    torch.save(saved.state_dict(), tmp_path / "w.pt")
    with pytest.raises(bdl.ConfigError, match=r"fc\.weight has the shape \(7, 512\) in it, and the shape \(10, 512\)"):
        bdl.CheckpointStart(str(tmp_path / "w.pt")).load(net)
    head = net.fc.weight.clone()
    bdl.CheckpointStart(str(tmp_path / "w.pt"), skip=["fc.*"]).load(net)  # the remedy of that line
    assert torch.equal(net.fc.weight, head) and torch.equal(net.layer4[1].conv2.weight, saved.layer4[1].conv2.weight)


def test_a_folder_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.DistilBertConfig(dim=8, n_layers=1, n_heads=2, hidden_dim=16, vocab_size=20)
    saved, net = (transformers.AutoModelForSequenceClassification.from_config(config) for _ in range(2))
    saved.save_pretrained(tmp_path / "hf")
    wrapped = bdl.CheckpointStart(str(tmp_path / "hf")).load(bdl.models.Logits(net))
    assert same(saved, wrapped.model)
    with pytest.raises(bdl.ConfigError, match="is a folder without model.safetensors or pytorch_model.bin"):
        bdl.CheckpointStart(str(tmp_path)).load(net)


@pytest.mark.parametrize(
    "other, words",
    [
        (lambda: network(width=6), r"0\.weight has the shape \(4, 5\) in it, and the shape \(6, 5\) in Sequential"),
        (lambda: nn.Sequential(*network(), nn.Linear(3, 2)), r"3\.weight has no place in it, and the shape \(2, 3\)"),
        (lambda: network()[:2], r"2\.weight has the shape \(3, 4\) in it, and no place in Sequential; build"),
    ],
    ids=["shape", "missing", "more"],
)
def test_the_first_difference_of_another_network_is_named(other, words, tmp_path):
    path, net = write("state_dict", network(), tmp_path), other()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with pytest.raises(bdl.ConfigError, match=words) as refused:
        bdl.CheckpointStart(path).load(net)
    assert "\n" not in str(refused.value)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items()), "nothing is half loaded"


def test_files_that_hold_no_weights_are_refused(tmp_path):
    for name, content in [("text.pt", b"weights"), ("a.safetensors", b"weights"), ("empty.pt", b"")]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(bdl.ConfigError, match="cannot be read as weights alone"):
            bdl.CheckpointStart(str(tmp_path / name)).load(network())
    torch.save(network(), tmp_path / "module.pt")  # a pickled module would be executed
    with pytest.raises(bdl.ConfigError, match="cannot be read as weights alone") as refused:
        bdl.CheckpointStart(str(tmp_path / "module.pt")).load(network())
    assert "bdl executes nothing" in str(refused.value) and "weights_only" not in str(refused.value)
    os.mkfifo(tmp_path / "pipe.pt")  # torch would wait for ever
    with pytest.raises(bdl.ConfigError, match="is no regular file"):
        bdl.CheckpointStart(str(tmp_path / "pipe.pt")).load(network())
    (tmp_path / "kernel.pt").symlink_to("/proc/self/status")
    with pytest.raises(bdl.ConfigError, match="is no regular file"):
        bdl.CheckpointStart(str(tmp_path / "kernel.pt")).load(network())
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(bdl.ConfigError, match="holds no state_dict"):
        bdl.CheckpointStart(str(tmp_path / "list.pt")).load(network())
    with pytest.raises(bdl.ConfigError, match="does not exist"):
        bdl.CheckpointStart(str(tmp_path / "none.pt")).load(network())


def test_a_pattern_to_skip_that_matches_nothing_is_refused(tmp_path):
    path = write("state_dict", network(), tmp_path)
    with pytest.raises(bdl.ConfigError, match=r"start\.skip='fc\.\*' matches no parameter: there are 0\.\*, 1\.\*"):
        bdl.CheckpointStart(path, skip=["fc.*"]).load(network())
