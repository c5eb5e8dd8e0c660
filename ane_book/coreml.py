"""The executor in Core ML's place by the name that it had here: `mlprogram.coreml`."""

from mlprogram.coreml import (
    Proxy,
    enable,
    pytest_configure,
    pytest_report_header,
    pytest_unconfigure,
)

__all__ = ["Proxy", "enable", "pytest_configure", "pytest_report_header", "pytest_unconfigure"]
