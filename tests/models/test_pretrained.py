"""Models of transformers from a folder. Tests of `bdl.contrib.language.pretrained` and `bdl.models.logits`."""

import json
import shutil

import pytest
import running
import safetensors.torch
import torch
from torch import nn

import bdl
from bdl.models import Logits, pretrained

TOKENS = torch.arange(24).view(3, 8) % 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A GPT-2 of two layers over 20 tokens, as save_pretrained writes it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    path = tmp_path_factory.mktemp("hf")
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return path


def test_logits_are_of_the_saved_model_and_no_stream_moves(folder):
    import transformers

    stream = torch.get_rng_state()
    net = pretrained(str(folder)).eval()
    assert torch.equal(torch.get_rng_state(), stream) and isinstance(net, Logits) and net.trained
    saved = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    torch.testing.assert_close(net(TOKENS), saved(TOKENS).logits)


def test_adapters_share_the_memory_of_the_model(folder):
    pytest.importorskip("peft")
    net = pretrained(folder)
    part = bdl.models.lora(net, r=2, target_modules=["c_attn"])
    of_net = {p.data_ptr() for p in net.parameters()}
    body = {p.data_ptr() for n, p in part.named_parameters() if "lora_" not in n}
    assert body == of_net and all(p.requires_grad for p in net.parameters())
    torch.testing.assert_close(part.eval()(TOKENS), net.eval()(TOKENS))


def test_a_run_samples_adapters_of_a_text_and_leaves_body_alone(folder, tmp_path):
    """From the command line: model=hf_lora over data=text. Only adapters are in the samples, and they move."""
    pytest.importorskip("peft")
    (tmp_path / "t.txt").write_text("abcdefghij klmnopq" * 30)
    run = running.sampled(
        tmp_path / "run", "data=text", f"data.path={tmp_path / 't.txt'}", "data.context=8", "model=hf_lora",
        f"model.name={folder}", "model.lora.target_modules=[c_attn]", "start.epochs=1", "chains=2", "stacks=1",
        "trainer=debug", "logger=none", "collect.keep.burn_in=2", "collect.keep.every=4", steps=12,
    )  # fmt: skip
    store = run.collect.store
    first, *_, last = (store.read(record) for record in store.records())
    assert first.keys() == last.keys() and all("lora_" in name for name in first)
    assert all(not torch.equal(first[name], last[name]) for name in first)
    given = dict(pretrained(folder).named_parameters())
    body = safetensors.torch.load_file(tmp_path / "run" / "samples" / "frozen.safetensors")
    assert {n.replace(".base_layer", "") for n in body} >= given.keys()
    assert all(torch.equal(body[n], given[n.replace(".base_layer", "")]) for n in body)


def test_what_is_no_model_is_refused_in_one_line(folder, tmp_path):
    with pytest.raises(bdl.ConfigError, match="is no folder with a config.json"):
        pretrained("gpt2")
    copied = shutil.copytree(folder, tmp_path / "copied")
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2Model"]}))
    with pytest.raises(bdl.ConfigError, match="holds GPT2Model: bdl reads ...ForCausalLM or"):
        pretrained(copied)
    (copied / "config.json").write_text(json.dumps(config))
    (copied / "model.safetensors").unlink()
    with pytest.raises(bdl.ConfigError, match="cannot be loaded"):
        pretrained(copied)


def test_logits_wraps_a_model_whose_weights_are_not_trained():
    class Output:
        logits = torch.ones(1)

    class Model(nn.Module):
        def forward(self, x):
            return Output()

    net = Logits(Model())
    assert not net.trained and torch.equal(net(TOKENS), Output.logits)
