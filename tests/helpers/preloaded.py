"""What the server of `forked` does once, before it forks: it imports what a run needs, and composes a configuration."""

import arviz_stats  # noqa: F401
import composing

import bdl.posterior.report.page
import bdl.run.evaluate
import bdl.run.train  # noqa: F401

composing.remember(setattr)
composing.composed("run_dir=x")
