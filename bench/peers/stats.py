# SPDX-License-Identifier: Apache-2.0
"""Medians and their intervals, as `icms bench` has them (bench/compare.c). Pure."""


def outside(n):
    """How many of the least (and of the greatest) of n values lie outside the 95 % interval of the
    median: the largest k with P(X < k) <= 2.5 %, X binomial with n tries of one half."""
    p, total, k = 0.5 ** n, 0.0, 0
    while k < n // 2:
        total += p
        if total > 0.025:
            break
        p = p * (n - k) / (k + 1)
        k += 1
    return k


def median(values):
    """(median, low, high): the interval covers the true median with 95 %; with fewer than six
    values it is all of their range, and covers less."""
    values = sorted(values)
    n = len(values)
    out = outside(n)
    middle = values[n // 2] if n % 2 else (values[n // 2 - 1] + values[n // 2]) / 2
    return middle, values[max(out - 1, 0)], values[min(n - out, n - 1)]


def quantile(values, q):
    """The value below which a share q of the values lies; 0 when there are none."""
    values = sorted(values)
    return values[min(int(q * len(values)), len(values) - 1)] if values else 0
