"""Blocks, allocators and block tables. Each module has the name that it has in vLLM v0's ``core.block``."""
