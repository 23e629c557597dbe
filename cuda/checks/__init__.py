"""Checks and measures ``kvpool.transfer`` on a GPU: see ``app``."""
