"""Labels that are words, as tables have them: one refusal, and what to write.

Keras stops at them before a fit begins, with "Invalid dtype: str96".
"""

import numpy as np
import pytest

from keras_fm.callbacks import PrivateModel

pytestmark = pytest.mark.tensorflow

N = 24
X = np.random.default_rng(0).normal(size=(N, 4)).astype("float32")
NUMBERS = np.arange(N) % 2
WORDS = np.array(["no", "secretly"])[NUMBERS]
CODE = "y = np.array([classes.index(v) for v in y])"


def of_pandas(make):
    def made():
        return make(pytest.importorskip("pandas"))

    return made


FORMS = {
    "text": lambda: WORDS,
    "objects": lambda: WORDS.astype(object),
    "bytes": lambda: WORDS.astype("S8"),
    "a list": WORDS.tolist,
    "a column": lambda: WORDS[:, None],
    "digits": lambda: NUMBERS.astype(str),
    "a series": of_pandas(lambda pd: pd.Series(WORDS)),
    "categories": of_pandas(lambda pd: pd.Series(WORDS).astype("category")),
    "pandas' text": of_pandas(lambda pd: pd.Series(WORDS, dtype="string")),
    "a frame": of_pandas(lambda pd: pd.DataFrame({"y": WORDS})),
    "a tensor": lambda: pytest.importorskip("tensorflow").constant(WORDS),
}


def refused(function):
    with pytest.raises(ValueError, match="must .*numbers") as e:
        function()
    assert CODE in str(e.value) and "secretly" not in str(e.value)


@pytest.mark.parametrize("form", FORMS)
def test_words_are_refused_where_they_are_given(form):
    y = FORMS[form]()
    refused(lambda: PrivateModel(epsilon=1.0, delta=1e-5, data=(X, y)))
