"""Integrations with inference engines, one package per engine.

Import a package only where its engine is installed.
"""
