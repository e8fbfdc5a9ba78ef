"""What scripts share, and the steps of building and checking the documentation and the package."""

from __future__ import annotations
