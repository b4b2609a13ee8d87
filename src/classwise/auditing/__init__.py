"""Audits: evaluation of every image under attack, and the tables that are computed from the outcomes.

Four records describe an audit; `run` builds them in this order:

1. the plan (`run.plan.Plan`): what was asked: attacks (a `run.suite.Suite`), threat, sampling and options;
2. the inputs (`run.preparation.Inputs`): the model and the images as they were read, with the plan for them;
3. the metadata (`outcomes.meta.Meta`): everything that decided the rows, stored in the files of the outcomes;
4. the result (`run.result.Audit`): the outcomes, the warnings of the guards, and the environment of its runs.

The tables of a result are computed by its estimator (`run.estimators.Estimator`), by how far the outcomes are known.
"""
