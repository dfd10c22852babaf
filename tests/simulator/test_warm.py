"""The command that compiles all kernels ahead of the first start."""

import pytest

from indexer.warm import kernel_modules, warm


def test_every_kernel_module_is_found_by_its_name() -> None:
    names = [*kernel_modules("indexer"), *kernel_modules("select_service")]
    assert "indexer.hashing.kernels" in names
    assert "select_service.core.load.kernels" in names
    assert all(name.endswith("kernels") for name in names)


def test_warming_imports_what_it_names() -> None:
    assert warm(["select_service"]) == list(kernel_modules("select_service"))


def test_an_unknown_package_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        warm(["no_such_package"])
