"""Printed numbers of the papers that the tests use, in percent."""

from __future__ import annotations

import numpy as np
import pandas as pd

from classwise.stats.counts import ClassCounts

TABLE_1 = {  # kdd21 Table 1: robust accuracy of the ten classes of CIFAR-10
    ("Madry", "FGSM"): [73.7, 81.2, 51.9, 41.5, 54.2, 49.4, 73.9, 72.5, 78.5, 78.5],
    ("TRADES", "FGSM"): [77.5, 85.9, 49.7, 41.9, 55.8, 52.8, 73.0, 76.8, 80.7, 75.3],
    ("MART", "FGSM"): [73.7, 84.9, 54.5, 45.7, 50.1, 51.6, 76.9, 75.2, 83.9, 77.7],
    ("HE", "FGSM"): [71.9, 84.6, 52.0, 42.2, 57.0, 57.9, 76.5, 77.8, 83.4, 80.9],
    ("Madry", "CW"): [67.5, 79.5, 43.0, 37.7, 41.5, 41.0, 57.5, 60.0, 71.5, 72.0],
    ("TRADES", "CW"): [69.5, 85.5, 39.0, 38.5, 43.0, 46.5, 57.0, 67.0, 77.5, 70.5],
    ("MART", "CW"): [65.5, 80.5, 43.0, 39.5, 41.0, 41.0, 63.0, 67.5, 76.5, 71.0],
    ("HE", "CW"): [71.2, 87.5, 47.1, 44.4, 49.8, 50.1, 61.4, 71.2, 81.5, 72.7],
    ("Madry", "PGD"): [63.8, 71.6, 39.1, 25.3, 36.7, 38.6, 57.4, 59.5, 63.1, 66.8],
    ("TRADES", "PGD"): [67.8, 80.6, 37.8, 29.4, 40.6, 43.9, 59.3, 66.9, 71.8, 65.6],
    ("MART", "PGD"): [64.5, 78.0, 45.1, 35.4, 37.7, 43.5, 65.3, 67.5, 76.3, 69.5],
    ("HE", "PGD"): [64.9, 79.3, 41.0, 34.5, 47.9, 51.5, 67.6, 70.5, 76.9, 73.2],
    ("Madry", "transfer"): [84.5, 87.7, 71.0, 68.3, 78.9, 69.2, 86.3, 82.9, 87.6, 86.4],
    ("TRADES", "transfer"): [87.7, 92.3, 70.9, 68.0, 78.2, 70.0, 87.8, 87.6, 90.8, 86.8],
    ("MART", "transfer"): [87.4, 94.7, 74.0, 66.7, 76.0, 68.8, 89.9, 88.0, 93.7, 90.0],
    ("HE", "transfer"): [90.1, 95.9, 75.6, 60.8, 77.4, 76.7, 91.1, 92.1, 93.4, 92.2],
    ("Madry", "N"): [67.5, 77.7, 43.7, 31.4, 42.7, 49.0, 53.7, 60.1, 64.4, 71.1],
    ("TRADES", "N"): [73.1, 87.4, 46.4, 44.4, 49.1, 61.7, 56.9, 71.6, 79.5, 74.1],
    ("MART", "N"): [72.3, 83.4, 55.3, 49.0, 54.1, 61.2, 67.1, 72.9, 82.3, 77.6],
    ("HE", "N"): [75.9, 88.3, 52.7, 44.7, 65.4, 62.6, 70.1, 76.0, 84.5, 77.5],
}
TEMPERATURE_MART = [62.7, 77.1, 41.5, 26.3, 27.5, 41.5, 60.8, 66.1, 72.8, 67.3]  # kdd21 Table 3, 1/T = 5
TEMPERATURE_MART_CHANGES = [-1.8, -0.9, -3.6, -9.1, -10.2, -2.0, -4.5, -1.4, -3.5, -2.2]


def table_1() -> pd.DataFrame:
    """kdd21 Table 1 as fractions, a row for each defence and attack."""
    frame = pd.DataFrame(TABLE_1).T / 100
    return frame.set_axis([f"{defence}, {attack}" for defence, attack in TABLE_1], axis=0)


def counts(percent: list[float]) -> ClassCounts:
    """Counts of correct predictions of 1,000 images of each class."""
    return ClassCounts(np.full(len(percent), 1000), np.rint(np.array(percent) * 10).astype(np.int64))
