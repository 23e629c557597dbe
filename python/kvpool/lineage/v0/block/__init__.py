"""Blocks, their allocators and tables: the modules of vLLM v0's ``core.block``, each under its name."""
