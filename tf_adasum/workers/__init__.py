"""The workers of a strategy: ranks, datasets, callbacks, and values exchanged between steps."""
