"""The Rank Differential Mechanism for solo-learn: spectral filters in place of predictors."""

__version__ = "0.1.0"
