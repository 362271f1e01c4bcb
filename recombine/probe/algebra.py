"""The matrix operations that take the time of a probe, with NumPy or on a device of PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from scipy import linalg

from recombine.basics.errors import InputError, require


class Algebra:
    """Products, factorizations and solutions in float64, by NumPy and SciPy."""

    def gram(self, h: np.ndarray, weights: np.ndarray) -> Any:
        """The products of features, summed over samples: h has samples x features."""
        if (weights == 1).all():
            return h.T @ h
        scaled = h * np.sqrt(weights)[:, None]
        return scaled.T @ scaled

    def array(self, matrix: Any) -> np.ndarray:
        """A matrix as a NumPy array."""
        return matrix

    def matrix(self, array: np.ndarray) -> Any:
        """A NumPy array as a matrix of these operations."""
        return array

    def standardized(self, gram: Any, mean_sum: np.ndarray, scale: np.ndarray, n: float) -> Any:
        """(gram - mean_sum mean_sumᵀ / n) scaled from both sides, divided by n."""
        result = gram - np.outer(mean_sum, mean_sum / n)
        result *= scale[:, None] / n
        result *= scale[None]
        return result

    def factor(self, matrix: Any, diagonal: float) -> Any:
        """The Cholesky factor of a matrix with this number added to its diagonal."""
        shifted = matrix.copy()
        shifted[np.diag_indices_from(shifted)] += diagonal
        return linalg.cho_factor(shifted, lower=True, overwrite_a=True, check_finite=False)

    def solve(self, factor: Any, right: np.ndarray) -> np.ndarray:
        """Solve the factored system for all columns on the right."""
        return linalg.cho_solve(factor, right, check_finite=False)

    def half_solve(self, factor: Any, right: np.ndarray, transposed: bool) -> np.ndarray:
        """Solve with the triangular factor L, or its transpose, alone."""
        return linalg.solve_triangular(
            factor[0], right, lower=True, trans=int(transposed), check_finite=False
        )


class TorchAlgebra(Algebra):
    """The same on a device of PyTorch. Only small matrices return to the CPU."""

    def __init__(self, device: str):
        try:
            self.torch: Any = importlib.import_module("torch")
        except ModuleNotFoundError as error:
            raise InputError(
                f"device={device!r} needs PyTorch: run pip install 'recombine[torch]'"
            ) from error
        try:
            self.device = self.torch.device(device)
        except RuntimeError as error:
            raise InputError(f"device must be cpu or cuda, got {device!r}") from error
        require(
            self.device.type != "cuda" or self.torch.cuda.is_available(),
            f"device={device!r}, but there is no CUDA device: leave device out",
        )

    def gram(self, h: np.ndarray, weights: np.ndarray) -> Any:
        """The products of features, summed over samples, on the device."""
        on_device = self._tensor(h * np.sqrt(weights)[:, None])
        return on_device.T @ on_device

    def array(self, matrix: Any) -> np.ndarray:
        """A matrix of the device as a NumPy array."""
        return matrix.cpu().numpy()

    def matrix(self, array: np.ndarray) -> Any:
        """A NumPy array as a matrix on the device."""
        return self._tensor(array)

    def standardized(self, gram: Any, mean_sum: np.ndarray, scale: np.ndarray, n: float) -> Any:
        """The same as for NumPy, on the device."""
        sums = self._tensor(mean_sum)
        scales = self._tensor(scale)
        return (gram - self.torch.outer(sums, sums / n)) * scales[:, None] * scales[None] / n

    def factor(self, matrix: Any, diagonal: float) -> Any:
        """The Cholesky factor, on the device."""
        shifted = matrix.clone()
        shifted.diagonal().add_(diagonal)
        return self.torch.linalg.cholesky(shifted)

    def solve(self, factor: Any, right: np.ndarray) -> np.ndarray:
        """Solve on the device; the result returns to the CPU."""
        return self.torch.cholesky_solve(self._tensor(right), factor).cpu().numpy()

    def half_solve(self, factor: Any, right: np.ndarray, transposed: bool) -> np.ndarray:
        """Solve with one triangle on the device."""
        triangle = factor.mT if transposed else factor
        solved = self.torch.linalg.solve_triangular(triangle, self._tensor(right), upper=transposed)
        return solved.cpu().numpy()

    def _tensor(self, array: np.ndarray) -> Any:
        return self.torch.as_tensor(np.ascontiguousarray(array), device=self.device)


def make_algebra(device: str | None) -> Algebra:
    """NumPy's operations, or PyTorch's on a device."""
    return Algebra() if device is None else TorchAlgebra(device)
