# SPDX-License-Identifier: Apache-2.0
"""Stands for PyTorch, which older NIXLs import and ask whether a list of memory is one of its
tensors. It is the last place that is looked at for modules."""


class Tensor:
    """No list of the tests is one."""
