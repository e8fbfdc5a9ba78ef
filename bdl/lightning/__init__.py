"""Lightning: the module, the callbacks, and the checks of Trainer settings."""
