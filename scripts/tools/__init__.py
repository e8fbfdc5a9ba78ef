"""What scripts share, and the steps of building and checking the documentation and the package."""
