"""Write the params.yaml entry of a model of your own."""

import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(chosen: argparse.Namespace) -> None:
    pass
