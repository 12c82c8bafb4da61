"""The oracle of random programs: what it must allow, and what it must not."""

import numpy as np
from intervals import apply, of


def test_a_product_beyond_all_floats_may_be_added_unrounded():
    """An FMA of it and -inf is -inf, a product and a sum are NaN."""
    large, lost = (of(np.array([x], "float32"), "float32") for x in (1e30, -np.inf))
    for product in (apply("multiply", large, large), apply("square", large)):
        assert (product.lo, product.hi) == (np.float32(3.4028235e38), np.inf)
        assert apply("add", product, lost).wild.all()
    endless = apply("multiply", lost, large)
    assert (endless.lo, endless.hi, endless.wild) == (-np.inf, -np.inf, False)
    both = apply("subtract", endless, lost)
    assert np.isnan(both.lo).all()
    assert not both.wild.any()
