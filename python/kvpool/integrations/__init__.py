"""kvpool inside inference engines, one package per engine.

Each package is imported only where its engine is installed.
"""
