"""Queries: statistics of the records that a release uses, and sensitivities."""

from keras_fm.core.column_moments import ColumnMomentsQuery
from keras_fm.core.second_moment import SecondMomentQuery
from keras_fm.evaluation.choice_query import ChoiceQuery
from keras_fm.evaluation.evaluation_query import EvaluationQuery
from keras_fm.heads.cross_entropy import CrossEntropyQuery
from keras_fm.heads.gradient_query import GradientQuery
from keras_fm.heads.squared_error import SquaredErrorQuery

# `Release.load` finds every class: all are imported here.
from keras_fm.kernel.ledger.noisy_statistics import Release as Release
from keras_fm.kernel.query import QuadraticQuery
from keras_fm.papers.adlm.relevance_query import RelevanceQuery
from keras_fm.papers.dpa.reconstruction import ReconstructionQuery
from keras_fm.papers.functional_net.expansion_query import NetworkExpansionQuery
from keras_fm.papers.pcdbn.patch_clusters import PatchClustersQuery
from keras_fm.papers.pcdbn.patch_moments import PatchMomentQuery
from keras_fm.per_example.step_query import LayerCoefficientsQuery
from keras_fm.preprocessing.column_histogram import ColumnHistogramQuery

__all__ = [
    "CrossEntropyQuery",
    "GradientQuery",
    "SecondMomentQuery",
    "SquaredErrorQuery",
]
