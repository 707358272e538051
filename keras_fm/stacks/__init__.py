"""Networks as stacks of affine maps with known per-record coefficients."""
