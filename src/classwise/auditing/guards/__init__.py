"""Guards: checks of a robustness evaluation for known pitfalls, each a named function.

After Carlini et al. (2019), "On evaluating adversarial robustness", and Athalye, Carlini and Wagner (2018). A guard
returns a warning of one sentence, why it could not decide, that it does not apply, or None; it never changes a number.
Images outside [0, 1] are refused by the data layer. Each guard has a page under ``docs/reference/guards``.
"""
