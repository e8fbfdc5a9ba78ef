"""A step of the build: conf/ becomes bdl/conf in a wheel. pyproject.toml names it, and setuptools loads it from here.

An editable install reads conf/ itself. It is then a plain path to the checkout, which editors and type checkers follow;
with `bdl.conf` as a mapped package it would be an import hook, which they do not.
"""

from pathlib import Path

from setuptools.command.build_py import build_py


class BuildWithConf(build_py):
    def run(self):
        super().run()
        for source, target in {} if self.editable_mode else self._files().items():
            self.mkpath(str(Path(target).parent))
            self.copy_file(source, target, preserve_mode=False)

    def get_outputs(self, include_bytecode=True):
        return [*super().get_outputs(include_bytecode), *([] if self.editable_mode else self._files().values())]

    def get_source_files(self):
        """What a source distribution needs."""
        return [*super().get_source_files(), *self._files(), "scripts/tools/packaging_step.py"]

    def _files(self):
        """The files of conf/ -> their places in the build."""
        return {str(path): str(Path(self.build_lib, "bdl", path)) for path in sorted(Path("conf").rglob("*.yaml"))}
