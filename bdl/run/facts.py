"""What a report says of a run's settings."""

from __future__ import annotations

from bdl.data.module import DataModule
from bdl.run.plan import Plan
from bdl.run.processes import ProcessInfo
from bdl.run.records import METRICS, REFIT, read_metrics


def facts_of(plan: Plan, data: DataModule, process: ProcessInfo) -> dict[str, str]:
    """What the report says of the settings, in the order in which it says it."""
    strategy, stacks = plan.compute.strategy, plan.stacks
    several = strategy != "auto" and process.world_size > 1
    return {
        "title": f"{plan.name}, seed {plan.seed}",
        "data": data.name or plan.choices["data"],
        **target_fact(data),
        "model": plan.choices["model"],
        "sampler": _sampler(plan),
        "schedule": plan.choices["schedule"],
        "N": f"{data.num_data:,}",
        **_scores(plan, data),
        "batch": str(data.batch_size) + (" per device" if several and strategy == "ddp" else ""),
        "devices": f"{process.world_size}, {strategy}" if several else "1",
        **({"stacks": f"{stacks.count} of {stacks.chains} chains"} if stacks.count > 1 else {}),
    }


def _sampler(plan: Plan) -> str:
    """The sampler by the name of its configuration, or that of the dynamics which tuning has put in its place."""
    found = (plan.found or {}).get("settings", {}).get("sampler.dynamics")
    return plan.choices["sampler"] if found is None else found["_target_"].rpartition(".")[2].lower()


def _scores(plan: Plan, data: DataModule) -> dict[str, str]:
    """Whose the scores of the report are, where a run has a refit, is one, or holds no item out."""
    if plan.refit:
        return {"refit": f"{REFIT}/ is sampled from all rows, for predictions; the scores are of this run, without it"}
    if data.has("test") or data.has("val"):
        return {}
    if plan.judged is None:
        return {"scores": "of training items: none is held out"}
    metrics = read_metrics(plan.judged / METRICS)
    names = [name for name in ("rmse", "accuracy", "nll") if f"test/bma/{name}" in metrics]
    judged = ", ".join(f"{name} {metrics[f'test/bma/{name}']:.4g}" for name in names)
    return {"scores": f"of rows that this run has seen; on held-out rows those of {plan.judged.name} stand: {judged}"}


def target_fact(data: DataModule) -> dict[str, str]:
    """What a report says of a table's target: its name, its task, and what 1 is in the units of the metrics."""
    target = (data.preprocessing() or {}).get("target")
    if target is None:
        return {}
    unit = f", standardised: 1 is {target['std']:.4g}" if target["task"] == "regression" else ""
    return {"target": f"{target['name']} ({target['task']}{unit})"}
