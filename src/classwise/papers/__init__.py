"""Inventory of papers, and experiments that reproduce their tables, figures and claims.

`inventory` and `item_facts` describe the items, `run` runs them, `plan` orders them so that they share trainings,
`forecast` forecasts the cost, `write_pages` writes the results beside the printed numbers, and `export` writes their
tables and figures as files.

Example:
    >>> import classwise as cw
    >>> cw.papers.item_facts("kdd21/T3")["printed"]["rows"][0]["tot"]
    51.8

The words, from the file of a paper to its page:

- `~classwise.papers.catalogue.Paper`: the content of ``PAPER.yaml``, the one file of a paper of this package or of an
  installed one.
- `~classwise.papers.catalogue.Item`: a table, figure, method or other part of a paper, with its numbers as printed.
- `~classwise.papers.catalogue.Claim`: a statement of a paper, or a question that it leaves open.
- `~classwise.papers.catalogue.Note`: an inconsistency of a paper, or how this library reads an ambiguity.
- `~classwise.papers.scales.Scale`: the data, network and budget of a run, such as ``small`` or ``full``.
- `~classwise.papers.experiment.Experiment`: the computation that reproduces an item at a scale; the item names it and
  gives its parameters.
- `~classwise.papers.experiment.Training`: a recipe with overrides, as an experiment declares it before a run;
  trained, it is a `classwise.Run` in the store.
- `~classwise.papers.experiment.Context`: what an experiment receives: it trains, audits and loads images at one scale.
- `~classwise.papers.claims.Test`: a quantity that is above zero if a claim is true, with its interval at any level.
- `~classwise.papers.claims.Measurement`: an estimate with its interval for a question, without an answer.
- `~classwise.papers.experiment.Findings`: what an experiment returns: tables, figures, tests and measurements.
- `~classwise.papers.claims.Verdict`: a test after the joint correction of all claims of the paper: supported,
  contradicted or inconclusive.
- `~classwise.papers.result.Evidence`: how much a result rests on: its trainings, images, epochs and attacks.
- `~classwise.papers.result.Result`: the findings of an item at a scale as stored, with verdicts and evidence.
- `~classwise.papers.settings.PaperSettings`: the settings that the paper states for a training or an evaluation.
- `~classwise.papers.settings.Setting`: a setting of a run beside that of the paper, from which it may deviate.
"""

from classwise.papers.cost import forecast, plan
from classwise.papers.export import export
from classwise.papers.page import write_pages
from classwise.papers.runner import run
from classwise.papers.settings import inventory, item_facts

__all__ = ["export", "forecast", "inventory", "item_facts", "plan", "run", "write_pages"]
