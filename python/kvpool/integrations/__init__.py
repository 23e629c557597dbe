"""kvpool inside inference engines, one package per engine; each is imported only where its engine is
installed.
"""
